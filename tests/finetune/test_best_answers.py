"""The best answers of a text against all of its spans, one by one; those of several models; their probabilities."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.questions.best_answers import (
    MOST_TOKENS,
    NUM_BEST,
    best,
    best_answers,
    best_spans,
    mean_answers,
    null_scores,
    probabilities,
    row_of,
)
from finetune.questions.contexts import encode_questions
from finetune.rows import Example
from finetune.tokenizer import open_tokenizer

WORDS = st.lists(st.sampled_from(["heart", "rate", "7", "the", "patients", "xyzzy"]), min_size=1, max_size=45)


def one_by_one(logits, encoded, text):
    """No answer's score, and the best score of each span of characters, over all windows and all pairs of tokens."""
    null, spans = math.inf, {}
    for sequence in np.flatnonzero(encoded.text == text):
        places = logits[encoded.bounds[sequence] : encoded.bounds[sequence + 1]].astype(float).tolist()
        begin = encoded.sequences.b_start[sequence]
        null = min(null, sum(places[0]))
        for first, last in product(range(1, len(places)), repeat=2):
            if first <= last < first + MOST_TOKENS:
                span = int(encoded.characters[begin + first - 1, 0]), int(encoded.characters[begin + last - 1, 1])
                spans[span] = max(spans.get(span, -math.inf), places[first][0] + places[last][1])
    return null, spans


@given(st.lists(WORDS, min_size=1, max_size=3), st.integers(8, 48), st.integers(0, 1000))
@settings(max_examples=60)
def test_they_are_the_best_of_all_spans_of_all_windows(small_tokenizer, contexts, length, seed):
    rows = [Example(str(n), "the rate", " ".join(words), ()) for n, words in enumerate(contexts)]
    encoded = encode_questions(rows, small_tokenizer, length)
    logits = np.random.default_rng(seed).normal(0, 3, encoded.targets.shape).astype(np.float32)
    outputs = best_answers(logits, encoded)
    for text, row in enumerate(outputs):
        null, spans = one_by_one(logits, encoded, text)
        ranked = sorted(spans.items(), key=lambda pair: -pair[1])[:NUM_BEST]
        found = best(row)
        is_there = found.scores > -np.inf
        assert list(zip(found.starts[is_there], found.ends[is_there], strict=True)) == [span for span, _ in ranked]
        total = math.log(sum(map(math.exp, [null, *(score for _, score in ranked)])))
        expected = [null - total, *(score - total for _, score in ranked)]
        assert [found.null, *found.scores[is_there]] == pytest.approx(expected, abs=1e-4)
        assert null_scores(row) == pytest.approx(null - ranked[0][1], abs=1e-4)
        of_null, of_each = probabilities(row, with_null=True)
        assert of_null + of_each.sum() == pytest.approx(1)
        assert probabilities(row, with_null=False)[1].sum() == pytest.approx(1)


@pytest.mark.parametrize("shared", [2, 6, 45])
def test_there_are_twenty_answers_also_where_tokens_share_a_character(small_tokenizer, shared):
    """As the letters of a Korean syllable do; each answer has the best score of its tokens."""
    rows = [Example(str(n), "the rate", "heart rate 7 " * 15, ()) for n in range(20)]
    encoded = encode_questions(rows, small_tokenizer, 60)
    characters = np.repeat(encoded.characters[::shared], shared, axis=0)[: len(encoded.characters)]
    encoded = replace(encoded, characters=characters)
    logits = np.random.default_rng(0).normal(0, 3, encoded.targets.shape).astype(np.float32)
    for text, row in enumerate(best_answers(logits, encoded)):
        null, spans = one_by_one(logits, encoded, text)
        scores = sorted(spans.values(), reverse=True)[:NUM_BEST]
        expected = np.array(scores) - math.log(sum(map(math.exp, [null, *scores])))
        found = best(row).scores
        assert found[found > -np.inf] == pytest.approx(expected, abs=1e-4)


def test_white_space_that_is_a_token_is_no_answer(other_encoder):
    """Of byte-level pieces, by brute force: an answer begins and ends with tokens that have characters."""
    tokenizer = open_tokenizer(other_encoder("roberta"))
    context = "the\n\n\nrate\tof  the\nheart "
    encoded = encode_questions([Example("1", "which rate?", context, ())], tokenizer, 40)
    characters = encoded.characters[encoded.sequences.b_start[0] :][: encoded.sequences.b_length[0]].tolist()
    blank = [1 + at for at, (start, end) in enumerate(characters) if start == end]
    assert len(blank) > 3 and len(encoded.text) == 1
    logits = np.random.default_rng(0).normal(0, 1, encoded.targets.shape).astype(np.float32)
    logits[blank] += 9
    found = best(best_answers(logits, encoded)[0])
    places = [at for at in range(1, len(logits)) if at not in blank]
    spans = {}
    for first, last in product(places, repeat=2):
        if first <= last < first + MOST_TOKENS:
            span = characters[first - 1][0], characters[last - 1][1]
            spans[span] = max(spans.get(span, -math.inf), float(logits[first, 0]) + float(logits[last, 1]))
    ranked = sorted(spans, key=spans.get, reverse=True)[:NUM_BEST]
    assert len(ranked) == NUM_BEST and list(zip(found.starts, found.ends, strict=True)) == ranked
    assert all(context[start:end].strip() == context[start:end] != "" for start, end in ranked)


def test_answers_are_as_long_as_is_said():
    start, end = np.full(100, -9.0), np.full(100, -9.0)
    start[10], end[10 + MOST_TOKENS - 1], end[10 + MOST_TOKENS], end[9] = 5.0, 4.0, 8.0, 8.0
    first, last, scores = best_spans(start, end, 1)
    assert (first[0], last[0], scores[0]) == (10, 10 + MOST_TOKENS - 1, 9.0)


def test_a_span_of_two_windows_is_there_once():
    row = row_of(0.0, np.array([[3, 7], [3, 7], [0, 2]]), np.array([1.0, 2.0, -1.0]))
    found = best(row)
    assert found.scores[2] == -np.inf and (found.starts[0], found.ends[0], found.starts[1]) == (3, 7, 0)
    assert np.exp(found.scores[0] - found.null) == pytest.approx(math.exp(2))


def test_numbers_that_are_none_are_no_answers():
    first, _, _ = best_spans(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 5)
    assert first.tolist() == [1]


def test_without_a_token_there_is_no_answer():
    row = row_of(1.5, np.zeros((0, 2), np.int64), np.zeros(0))
    assert row[0] == 0 and (best(row).scores == -np.inf).all() and null_scores(row) > 1000
    of_null, of_each = probabilities(row, with_null=False)
    assert of_null == 0 and of_each.sum() == 0
    sure_of_none = row_of(2000.0, np.array([[0, 2], [3, 7]]), np.array([0.0, 0.0]))
    assert probabilities(sure_of_none, with_null=False)[1][:2] == pytest.approx([0.5, 0.5])


def test_several_models_give_the_mean_of_their_probabilities():
    first = row_of(0.0, np.array([[0, 2], [3, 7]]), np.array([0.0, 1.0]))
    second = row_of(2.0, np.array([[3, 7], [8, 9]]), np.array([0.0, 1.0]))
    (row,) = mean_answers([first[None], second[None]])
    chances = [np.exp([0, 0, 1]), np.exp([2, 0, 1])]
    chances = [each / each.sum() for each in chances]
    expected = {(0, 2): chances[0][1] / 2, (3, 7): (chances[0][2] + chances[1][1]) / 2, (8, 9): chances[1][2] / 2}
    of_null, of_each = probabilities(row, with_null=True)
    assert of_null == pytest.approx((chances[0][0] + chances[1][0]) / 2)
    found = best(row)
    together = {(int(a), int(b)): p for a, b, p in zip(found.starts, found.ends, of_each, strict=True) if p}
    assert together == pytest.approx(expected)
    assert (np.diff(of_each) <= 0).all()
    # Where every question has an answer, what a model leaves to none says nothing of its answers.
    of_answers = [each[1:] / each[1:].sum() for each in chances]
    _, of_each = probabilities(mean_answers([first[None], second[None]], with_null=False)[0], with_null=False)
    expected = [of_answers[0][1] + of_answers[1][0], of_answers[1][1], of_answers[0][0]]
    assert of_each[:3] == pytest.approx(np.array(expected) / 2)
    # Of one model it is the same.
    assert np.allclose(np.exp(mean_answers([first[None]])[0]), np.exp(first), atol=1e-6)
