"""Exact match and F1 beside torchmetrics and by hand, thresholds against all of them, and baselines."""

import json
import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.questions.answer_baselines import first_sentence, most_alike, no_answer, sentences
from finetune.questions.answer_scores import (
    best_threshold,
    exact_match,
    f1,
    gold_answers,
    is_null,
    means,
    normalised,
    scores_of_texts,
)
from finetune.questions.best_answers import best, null_scores, probabilities, row_of
from finetune.rows import Example
from finetune.tasks.question_answering import QuestionAnswering

NOTHING = np.zeros((0, 2), np.int64)


def example(context, *answers):
    """Of a context and the answers in it."""
    return Example("x:1", "What?", context, tuple((context.index(a), context.index(a) + len(a)) for a in answers))


HARD = [
    ("The Heart!", "heart", 1, 1),
    ("a heart-rate", "an heartrate", 1, 1),
    ("heart  rate", "the heart, rate", 1, 1),
    ("rate of the heart", "heart rate", 0, 0.8),
    ("heart heart", "heart", 0, 2 / 3),
    ("anaemia", "emia", 0, 0),
    ("“heart”", "heart", 0, 0),
    ("the", "the", 1, 1),
    ("the", "a", 1, 1),
    ("", "heart", 0, 0),
    ("", "", 1, 1),
    ("İ", "i̇", 1, 1),
    ("7 8 7", "7 7", 0, 0.8),
]


@pytest.mark.parametrize(("given_", "gold", "exact", "overlap"), HARD)
def test_answers_are_compared_by_the_rules(given_, gold, exact, overlap):
    row = Example("x:1", "What?", gold, ((0, len(gold)),) if gold else ())
    assert exact_match(normalised(given_), gold_answers(row)) == exact
    assert f1(normalised(given_), gold_answers(row)) == pytest.approx(overlap)


def test_answers_of_which_nothing_is_left_are_dropped():
    assert gold_answers(example("the heart", "the", "heart")) == ["heart"]
    assert gold_answers(example("the heart", "the")) == gold_answers(example("the heart")) == [""]


WORDS = ["heart", "Heart", "the", "A", "rate,", "7", "-", "an", "(rate)", "é"]
texts = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)


@given(texts, st.lists(texts.filter(normalised), min_size=1, max_size=3))
@settings(max_examples=40)
def test_scores_are_those_of_torchmetrics(given_, golds):
    squad = pytest.importorskip("torchmetrics.functional.text", reason="torchmetrics is not installed").squad
    target = {"answers": {"answer_start": [0] * len(golds), "text": golds}, "id": "1"}
    theirs = squad([{"prediction_text": given_, "id": "1"}], [target])
    gold = [normalised(each) for each in golds]
    assert 100 * exact_match(normalised(given_), gold) == pytest.approx(theirs["exact_match"].item())
    assert 100 * f1(normalised(given_), gold) == pytest.approx(theirs["f1"].item(), abs=1e-4)
    none = {"answers": {"answer_start": [0], "text": [""]}, "id": "1"}
    theirs = squad([{"prediction_text": given_, "id": "1"}], [none])
    assert 100 * exact_match(normalised(given_), [""]) == pytest.approx(theirs["exact_match"].item())
    assert 100 * f1(normalised(given_), [""]) == pytest.approx(theirs["f1"].item())


CONTEXT = "the heart rate was 70 then 80"
SPANS = [(4, 9), (4, 14), (19, 21), (27, 29), (0, 3)]
rows_with_outputs = st.lists(
    st.tuples(
        st.lists(st.sampled_from(SPANS[:4]), max_size=2),
        st.lists(st.sampled_from(SPANS), max_size=4, unique=True),
        st.integers(-4, 4),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


def made(drawn):
    """Examples, and outputs of a model."""
    rows = [Example(str(n), "What?", CONTEXT, tuple(golds)) for n, (golds, *_) in enumerate(drawn)]
    outputs = [
        row_of(null, np.array(spans).reshape(-1, 2), np.linspace(scale, 0, len(spans)))
        for _, spans, null, scale in drawn
    ]
    return rows, np.stack(outputs)


@given(rows_with_outputs)
@settings(max_examples=50)
def test_scores_of_texts_are_those_of_their_definitions(drawn):
    rows, outputs = made(drawn)
    for threshold in (None, 0.0, 1.5):
        found = scores_of_texts(rows, outputs, threshold)
        for number, (row, output) in enumerate(zip(rows, outputs, strict=True)):
            each, gold = best(output), gold_answers(row)
            spans = zip(each.starts, each.ends, each.scores, strict=True)
            answers = [normalised(CONTEXT[int(a) : int(b)]) for a, b, score in spans if score > -np.inf]
            is_none = not answers or (threshold is not None and each.null - each.scores[0] > threshold + 1e-9)
            said = "" if is_none else answers[0]
            assert found["exact_match"][number] == (said in gold) and found["answerable"][number] == bool(row.label)
            assert found["f1"][number] == pytest.approx(max(f1(said, [one]) for one in gold))
            chances = np.exp([*([each.null] if threshold is not None else []), *each.scores[: len(answers)]])
            names = [*([""] if threshold is not None else []), *answers]
            right = sum(p for p, name in zip(chances, names, strict=True) if name in gold) / max(chances.sum(), 1e-30)
            assert found["loss"][number] == pytest.approx(-math.log(max(right, 1.1920929e-07)), abs=1e-4)


@given(rows_with_outputs)
@settings(max_examples=50)
def test_no_other_threshold_is_better(drawn):
    rows, outputs = made(drawn)

    def reached(threshold):
        return scores_of_texts(rows, outputs, threshold)["f1"].mean()

    scores = sorted(null_scores(outputs))
    others = [
        scores[0] - 0.5,
        scores[-1] + 0.5,
        *scores,
        *((a + b) / 2 for a, b in zip(scores, scores[1:], strict=False)),
    ]
    assert reached(best_threshold(rows, outputs)) == pytest.approx(max(map(reached, others)))


@given(rows_with_outputs, st.data())
@settings(max_examples=50)
def test_scores_of_draws_are_those_of_each(drawn, data):
    rows, outputs = made(drawn)
    for task in (QuestionAnswering(), QuestionAnswering(0.5)):
        targets = task.targets(rows)
        draws = [np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))) for _ in range(3)]
        found = task.scores_of_draws(targets, outputs, draws)
        assert set(found) == set(task.metrics) == set(task.scores(targets, outputs))
        for number, texts_ in enumerate(draws):
            expected = task.scores(*task.drawn(targets, outputs, texts_))
            expected = {name: math.nan if score is None else score for name, score in expected.items()}
            assert {name: found[name][number] for name in found} == pytest.approx(expected, nan_ok=True)


def test_what_has_no_text_is_not_defined():
    rows = [example(CONTEXT, "70")]
    found = means(
        scores_of_texts(rows, np.stack([row_of(0.0, np.array([[19, 21]]), np.ones(1))]), 0.0), slice(None), True
    )
    assert found["unanswerable_f1"] is None and found["answerable_f1"] == found["f1"] == 1


def test_sentences_are_where_they_are():
    context = "  Dr. Heart\tcame.\n\nThe  rate was 7.5 in No. 3.  It\u00a0fell? ”Yes.“ 東京。大阪。"
    spans = sentences(context)
    assert [context[a:b] for a, b in spans][:2] == ["Dr. Heart\tcame.", "The  rate was 7.5 in No. 3."]
    assert "".join("".join(context[a:b].split()) for a, b in spans) == "".join(context.split())
    assert sentences("\u200b") == ((0, 1),)


def test_baselines_answer_without_a_model():
    context = "It was cold. The heart rate was 70. He slept."
    rows = [Example("1", "What was the heart rate?", context, ()), Example("2", "Who slept?", context, ())]
    said = [[context[int(r[1]) : int(r[21])] for r in make(rows)] for make in (most_alike, first_sentence)]
    assert said == [["The heart rate was 70.", "He slept."], ["It was cold."] * 2]
    of_null, of_each = probabilities(most_alike(rows), with_null=True)
    assert of_each[:, 0] == pytest.approx([4 / 5, 1 / 2]) and of_null == pytest.approx([1 / 5, 1 / 2])
    assert is_null(no_answer(rows), None).all() and not is_null(first_sentence(rows), -1e9).any()
    assert json.dumps(null_scores(no_answer(rows)).tolist()) == "[10000.0, 10000.0]"
    # A sentence that is given whatever is asked stays what it is, also where no answer would be better.
    assert best_threshold(rows, first_sentence(rows)) > -10_000


def test_texts_of_one_null_score_are_answered_or_not_together():
    rows = [Example("x:1", "What?", "the heart", answers) for answers in (((4, 9),), (), ())]
    outputs = np.stack([row_of(0.0, np.array([[4, 9]]), np.ones(1))] * 3)
    assert scores_of_texts(rows, outputs, best_threshold(rows, outputs))["f1"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("text", ["വീട്ടില്\u200d", "א\u200f", "\ufeffheart", "hos\u00adpital"])
def test_characters_of_no_width_do_not_count(text):
    bare = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
    assert normalised(text) == normalised(bare) == bare
    assert exact_match(normalised(bare), gold_answers(example(f"{text} x", text))) == 1


def test_words_that_are_compared_keep_their_vowel_signs():
    # With \w+ the names of the river would be one word.
    context = "नद बहता है। नदी बहती है।"
    found = most_alike([Example("1", "नदी?", context, ())])[0]
    assert context[int(found[1]) : int(found[21])] == "नदी बहती है।"
