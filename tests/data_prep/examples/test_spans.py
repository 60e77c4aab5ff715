"""Spans and n-grams beside brute-force versions, the loop of the paper's code, and their distributions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, geom

from data_prep.examples.masking import MaskingRules, mask
from data_prep.examples.random_keys import keys

PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_WORD, FIRST_CONTINUATION, VOCABULARY = 8, 24, 40
SPAN = MaskingRules(
    mask_id=MASK,
    fixed_ids=(PAD, CLS, SEP),
    starts_word=np.arange(VOCABULARY) < FIRST_CONTINUATION,
    is_ordinary=np.arange(VOCABULARY) >= FIRST_WORD,
    masking="span",
)
NGRAM = replace(SPAN, masking="ngram")
SPAN_SHARES = geom(0.2).pmf(np.arange(1, 11)) / geom(0.2).cdf(10)
NGRAM_SHARES = np.array([6, 3, 2]) / 11
shares_of_targets = st.sampled_from([0.15, 0.4, 0.9])
# Words and runs of continuing pieces, short and long, in one segment or two.
pieces = st.lists(
    st.one_of(st.integers(FIRST_WORD, VOCABULARY - 1), st.integers(FIRST_CONTINUATION, VOCABULARY - 1)),
    min_size=1,
    max_size=60,
)
example_lists = st.lists(st.tuples(pieces, st.one_of(st.just([]), pieces)), min_size=1, max_size=6)


def packed(examples: list[tuple[list[int], list[int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP] end to end: ids, token types, starts."""
    ids, types, starts = [], [], [0]
    for a, b in examples:
        ids += [CLS, *a, SEP] + ([*b, SEP] if b else [])
        types += [0] * (len(a) + 2) + ([1] * (len(b) + 1) if b else [])
        starts.append(len(ids))
    return np.array(ids), np.array(types), np.array(starts)


def keys_of(numbers) -> np.ndarray:
    return keys(1, "example", 0, np.array(numbers))


def masked_places(examples, example_key, rules) -> list[list[int]]:
    """Of each example the places in it that are masked."""
    ids, types, starts = packed(examples)
    positions = mask(ids, types, starts, example_key, rules)[1]
    return [
        (positions[(positions >= begin) & (positions < end)] - begin).tolist()
        for begin, end in zip(starts[:-1], starts[1:], strict=True)
    ]


def segments_of(example) -> list[list[list[int]]]:
    """Of each segment its words, as places in the example; runs over 10 pieces as single pieces."""
    found, place = [], 1
    for segment in filter(None, example):
        words: list[list[int]] = []
        for number, piece in enumerate(segment):
            if number and piece >= FIRST_CONTINUATION:
                words[-1].append(place + number)
            else:
                words.append([place + number])
        found.append([part for word in words for part in ([word] if len(word) <= 10 else [[p] for p in word])])
        place += len(segment) + 1
    return found


def wanted(example, probability: float) -> int:
    content = len(example[0]) + len(example[1])
    length = content + 2 + bool(example[1])
    return min(max(1, round(probability * length)), content)


def drawn(shares: np.ndarray, example_key: np.ndarray, purpose: str, place: int) -> int:
    """A number from 1 on by the inverse of the distribution."""
    chance = int(keys(0, purpose, 0, example_key, place)) / 2**64
    return next(n for n in range(1, len(shares) + 1) if chance < shares[:n].sum() or n == len(shares))


def expected_spans(example, example_key, probability: float) -> list[int]:
    """Tokens in random order: each that is not masked begins a span at its word, which is cut off at the budget."""
    segments, taken = segments_of(example), []
    places = [place for words in segments for word in words for place in word]
    for anchor in sorted(places, key=lambda place: int(keys(0, "mask", 0, example_key, place))):
        if anchor in taken:
            continue
        words = next(words for words in segments if any(anchor in word for word in words))
        begin = next(number for number, word in enumerate(words) if anchor in word)
        for word in words[begin : begin + drawn(SPAN_SHARES, example_key, "span length", anchor)]:
            for place in word:
                if place not in taken and len(taken) < wanted(example, probability):
                    taken.append(place)
    return sorted(taken)


def expected_ngrams(example, example_key, probability: float) -> list[int]:
    """Words in random order begin n-grams, which are shortened until they fit, or passed over."""
    segments, taken, budget = segments_of(example), [], wanted(example, probability)
    starts = [(words, number) for words in segments for number in range(len(words))]
    starts.sort(key=lambda start: int(keys(0, "mask", 0, example_key, start[0][start[1]][0])))
    for words, begin in starts:
        n = drawn(NGRAM_SHARES, example_key, "n-gram length", words[begin][0])
        while n and len(taken) + sum(map(len, words[begin : begin + n])) > budget:
            n -= 1
        places = [place for word in words[begin : begin + n] for place in word]
        if not set(places) & set(taken):
            taken += places
    words, begin = starts[0]
    return sorted(taken or words[begin][:budget])


@pytest.mark.parametrize(("rules", "expected"), [(SPAN, expected_spans), (NGRAM, expected_ngrams)])
@settings(max_examples=60)
@given(examples=example_lists, salt=st.integers(0, 99), probability=shares_of_targets)
def test_the_places_are_those_of_the_brute_force_version(rules, expected, examples, salt, probability):
    example_key = keys_of(salt + np.arange(len(examples)))
    found = masked_places(examples, example_key, replace(rules, probability=probability))
    assert found == [expected(e, k, probability) for e, k in zip(examples, example_key, strict=True)]


@settings(max_examples=200)
@given(
    examples=st.lists(st.tuples(pieces, st.one_of(st.just([]), pieces)), min_size=5, max_size=5),
    salt=st.integers(0, 99),
    probability=shares_of_targets,
)
def test_spans_fill_the_budget_exactly_and_ngrams_never_exceed_it(examples, salt, probability):
    example_key, budgets = keys_of(salt + np.arange(len(examples))), [wanted(e, probability) for e in examples]
    spans, ngrams = (
        [len(places) for places in masked_places(examples, example_key, replace(rules, probability=probability))]
        for rules in (SPAN, NGRAM)
    )
    assert spans == budgets
    assert all(1 <= found <= budget for found, budget in zip(ngrams, budgets, strict=True))


def long_texts(count: int, words: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids of texts of one segment, each word of one to three pieces; starts, and the word of each token."""
    draw = np.random.default_rng(seed)
    ids, word, starts = [], [], [0]
    for _ in range(count):
        sizes = draw.integers(1, 4, words)
        first = np.cumsum(sizes) - sizes
        text = draw.integers(FIRST_CONTINUATION, VOCABULARY, sizes.sum())
        text[first] = draw.integers(FIRST_WORD, FIRST_CONTINUATION, words)
        ids += [[CLS], text, [SEP]]
        word += [[-1], np.repeat(np.arange(words), sizes), [-1]]
        starts.append(starts[-1] + len(text) + 2)
    return np.concatenate(ids), np.concatenate(word), np.array(starts)


def runs_of(places: np.ndarray) -> list[np.ndarray]:
    return np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)


def masked_runs(rules, seed: int, count: int, words: int = 8_000):
    """Runs of masked tokens in long texts: their places; of all tokens the ids before and after, and their words."""
    ids, word, starts = long_texts(count, words, seed)
    masked, positions, _ = mask(ids, np.zeros_like(ids), starts, keys_of(range(count)), rules)
    return runs_of(positions), ids, masked, word


@pytest.mark.parametrize(("rules", "shares"), [(SPAN, SPAN_SHARES), (NGRAM, NGRAM_SHARES)], ids=["span", "ngram"])
@pytest.mark.parametrize("seed", [1, 2])
def test_lengths_in_whole_words_are_those_of_the_distribution(rules, shares, seed):
    """One in a hundred tokens is masked, so that hardly a run is cut off, and few touch."""
    count = 60 if rules is SPAN else 30
    runs, _, _, word = masked_runs(replace(rules, probability=0.01), seed, count)
    in_words = np.array([word[run[-1]] - word[run[0]] + 1 for run in runs])
    counts = np.bincount(in_words, minlength=len(shares) + 1)[1 : len(shares) + 1]
    assert counts.sum() > 0.97 * len(runs) > 1_000
    assert chisquare(counts, shares * counts.sum()).pvalue > 1e-4
    # But for the last of each text, which fills the budget, they are whole words.
    torn = sum(word[run[0]] == word[run[0] - 1] or word[run[-1]] == word[run[-1] + 1] for run in runs)
    assert torn <= count if rules is SPAN else torn == 0


def by_redrawing(draw: np.random.Generator, words: list[int], budget: int) -> list[int]:
    """The loop of the paper's code: a length and any token, both drawn again where the token is masked already.

    Args:
        words: the word of each token.

    Returns:
        The sizes of the runs of masked tokens.
    """
    masked: set[int] = set()
    while len(masked) < budget:
        length, anchor = draw.choice(10, p=SPAN_SHARES) + 1, draw.integers(len(words))
        if anchor in masked:
            continue
        for place, word in enumerate(words):
            if words[anchor] <= word < words[anchor] + length and len(masked) < budget:
                masked.add(place)
    return [len(run) for run in runs_of(np.array(sorted(masked)))]


def test_spans_are_distributed_as_by_the_loop_of_the_paper():
    """How many runs there are and how long they are in 1,500 texts of 46 tokens, 18 of them masked."""
    count, draw = 1_500, np.random.default_rng(3)
    text = [FIRST_WORD, FIRST_CONTINUATION, 9, 10, 11, 25, 26, 12, 13, 14] * 4 + [15, 16, 17, 18]
    words = np.cumsum(np.array(text) < FIRST_CONTINUATION).tolist()
    ids, types, starts = packed([(text, [])] * count)
    positions = mask(ids, types, starts, keys_of(range(count)), replace(SPAN, probability=0.4))[1]
    ours = [len(run) for run in runs_of(positions)]
    theirs = [size for _ in range(count) for size in by_redrawing(draw, words, 18)]
    table = np.array([np.bincount(sizes, minlength=19) for sizes in (ours, theirs)])
    common = table[:, table.sum(0) > 20]
    assert common.sum() > 0.98 * table.sum() > 6_000
    assert chi2_contingency(common).pvalue > 1e-4


def test_a_span_is_replaced_as_one_and_its_random_tokens_are_drawn_one_by_one():
    runs, original, masked, _ = masked_runs(replace(SPAN, probability=0.05), seed=1, count=30)
    is_mask = [bool((masked[run] == MASK).all()) for run in runs]
    assert all(flag or not (masked[run] == MASK).any() for flag, run in zip(is_mask, runs, strict=True))
    # A random token is the right one in 32 times: of runs of several, hardly one is kept by chance.
    several = [(run, flag) for run, flag in zip(runs, is_mask, strict=True) if len(run) > 2]
    is_kept = [bool((masked[run] == original[run]).all()) for run, _ in several]
    others = [run for (run, flag), kept in zip(several, is_kept, strict=True) if not flag and not kept]
    counts = [sum(flag for _, flag in several), len(others), sum(is_kept)]
    assert sum(counts) == len(several) > 2_000
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * len(several)).pvalue > 1e-4
    assert all((masked[run] >= FIRST_WORD).all() for run in others)
    assert np.mean([len(set(masked[run].tolist())) > 1 for run in others]) > 0.95
    assert np.mean(np.concatenate([masked[run] == original[run] for run in others])) < 0.1


def test_tokens_of_an_ngram_are_replaced_one_by_one():
    """As ALBERT's code has it: among eight of ten [MASK], other replacements stand in one run."""
    runs, _, masked, _ = masked_runs(replace(NGRAM, probability=0.05), seed=1, count=20)
    shares = [np.mean(masked[run] == MASK) for run in runs if len(run) > 2]
    assert np.mean(np.concatenate([masked[run] == MASK for run in runs])) == pytest.approx(0.8, abs=0.01)
    assert np.mean([0 < share < 1 for share in shares]) > 0.4
