"""Masking: exact counts, the 80/10/10 shares, and a brute-force version of whole words in plain Python."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.examples.masking import MaskingRules, mask
from data_prep.examples.random_keys import keys

PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_WORD, FIRST_CONTINUATION, VOCABULARY = 8, 24, 40
RULES = MaskingRules(
    mask_id=MASK,
    fixed_ids=(PAD, CLS, SEP),
    starts_word=np.arange(VOCABULARY) < FIRST_CONTINUATION,
    is_ordinary=np.arange(VOCABULARY) >= FIRST_WORD,
)
WHOLE, SPAN, NGRAM = (replace(RULES, masking=masking) for masking in ("whole-word", "span", "ngram"))
modes = pytest.mark.parametrize("rules", [RULES, WHOLE, SPAN, NGRAM], ids=lambda rules: rules.masking)
# Words and runs of continuing pieces, short and long; [UNK] is a word like any other.
pieces = st.lists(
    st.one_of(st.integers(FIRST_WORD, VOCABULARY - 1), st.just(UNK), st.integers(FIRST_CONTINUATION, VOCABULARY - 1)),
    min_size=1,
    max_size=60,
)
example_lists = st.lists(st.tuples(pieces, st.one_of(st.just([]), pieces)), min_size=1, max_size=6)
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


def packed(examples: list[tuple[list[int], list[int]]]) -> Batch:
    """[CLS] A [SEP] B [SEP] end to end: ids, token types, starts."""
    ids, types, starts = [], [], [0]
    for a, b in examples:
        ids += [CLS, *a, SEP] + ([*b, SEP] if b else [])
        types += [0] * (len(a) + 2) + ([1] * (len(b) + 1) if b else [])
        starts.append(len(ids))
    return np.array(ids), np.array(types), np.array(starts)


def keys_of(numbers) -> np.ndarray:
    return keys(1, "example", 0, np.array(numbers))


def by_example(batch: Batch, result, number: int) -> tuple[list[int], list[int], list[int]]:
    """Ids after masking, masked places and labels of one example of a batch."""
    masked, positions, labels = result
    start, end = batch[2][number : number + 2]
    mine = (positions >= start) & (positions < end)
    return masked[start:end].tolist(), (positions[mine] - start).tolist(), labels[mine].tolist()


@modes
@given(examples=example_lists, salt=st.integers(0, 99))
def test_labels_are_the_originals_and_all_else_is_unchanged(rules, examples, salt):
    ids, types, starts = packed(examples)
    before = ids.copy()
    masked, positions, labels = mask(ids, types, starts, keys_of(salt + np.arange(len(examples))), rules)
    assert ids.tolist() == before.tolist()
    assert (np.diff(positions) > 0).all()
    assert labels.tolist() == ids[positions].tolist()
    restored = masked.copy()
    restored[positions] = labels
    assert restored.tolist() == ids.tolist()
    assert not np.isin(labels, [PAD, CLS, SEP]).any()
    new = masked[positions]
    assert (RULES.is_ordinary[new] | (new == MASK) | (new == labels)).all()


@given(examples=example_lists, salt=st.integers(0, 99))
def test_the_number_of_targets_is_exact_in_every_example(examples, salt):
    ids, types, starts = packed(examples)
    _, positions, _ = mask(ids, types, starts, keys_of(salt + np.arange(len(examples))), RULES)
    counts = np.histogram(positions, bins=starts)[0]
    assert counts.tolist() == [max(1, round(0.15 * length)) for length in np.diff(starts).tolist()]


@pytest.mark.parametrize(("length", "targets"), [(3, 1), (9, 1), (11, 2), (20, 3), (64, 10), (128, 19), (512, 77)])
def test_numbers_of_targets_in_plain_figures(length, targets):
    ids, types, starts = packed([([FIRST_WORD] * (length - 2), [])])
    for rules in (RULES, WHOLE, SPAN):
        assert len(mask(ids, types, starts, keys_of([0]), rules)[1]) == targets


@modes
def test_an_example_without_candidates_has_no_targets(rules):
    ids, types, starts = packed([([FIRST_WORD] * 5, []), ([], []), ([FIRST_WORD] * 5, []), ([], [])])
    _, positions, _ = mask(ids, types, starts, keys_of(range(4)), rules)
    assert np.histogram(positions, bins=starts)[0].tolist() == [1, 0, 1, 0]


@modes
def test_padding_is_never_masked(rules):
    ids, types, starts = packed([([FIRST_WORD] * 3 + [PAD] * 60, [])])
    _, positions, labels = mask(ids, types, starts, keys_of([0]), rules)
    assert labels.tolist() == [FIRST_WORD] * len(positions)
    # An n-gram that meets another is passed over.
    assert set(positions.tolist()) <= {1, 2, 3} if rules is NGRAM else positions.tolist() == [1, 2, 3]


@pytest.mark.parametrize("seed", [1, 2])
def test_of_ten_masked_tokens_eight_are_mask_one_is_random_one_is_kept(seed):
    count, length = 11_000, 128
    ordinary = np.flatnonzero(RULES.is_ordinary)
    text = np.random.default_rng(seed).choice(ordinary, (count, length))
    text[:, 0], text[:, -1] = CLS, SEP
    starts = np.arange(count + 1) * length
    ids = text.reshape(-1)
    example_key = keys(seed, "example", 0, np.arange(count))
    masked, positions, labels = mask(ids, np.zeros_like(ids), starts, example_key, RULES)
    new, n = masked[positions], len(positions)
    assert n == count * 19 > 200_000
    # A random word is the word itself one time in 32.
    by_chance = 0.1 / len(ordinary)
    shares = {"mask": (new == MASK, 0.8), "kept": (new == labels, 0.1 + by_chance)}
    shares["random"] = ((new != MASK) & (new != labels), 0.1 - by_chance)
    for name, (hits, share) in shares.items():
        assert abs(hits.mean() - share) < 3 * (share * (1 - share) / n) ** 0.5, name
    random = new[shares["random"][0]]
    assert set(random.tolist()) == set(ordinary.tolist())
    counts = np.bincount(random, minlength=VOCABULARY)[ordinary]
    expected = counts.mean()
    assert ((counts - expected) ** 2 / expected).sum() < 31 + 5 * 62**0.5


@pytest.mark.parametrize(("masks", "randoms"), [(0.5, 0.3), (0.85, 0.0), (0.0, 0.0)])
def test_other_shares_are_those_that_are_asked_for(masks, randoms):
    count, length = 500, 128
    ids = np.full(count * length, FIRST_WORD)
    starts = np.arange(count + 1) * length
    example_key = keys(1, "example", 0, np.arange(count))
    rules = replace(RULES, mask_share=masks, random_share=randoms)
    masked, positions, labels = mask(ids, np.zeros_like(ids), starts, example_key, rules)
    new, n = masked[positions], len(positions)
    by_chance = randoms / int(RULES.is_ordinary.sum())
    kept = 1 - masks - randoms + by_chance
    for hits, share in ((new == MASK, masks), (new == labels, kept)):
        assert abs(hits.mean() - share) <= 4 * (share * (1 - share) / n) ** 0.5
    assert (randoms > 0) == bool(((new != MASK) & (new != labels)).any())


def test_every_candidate_is_equally_likely():
    """Unequal neighbours, positions and segments do not matter: 20,000 examples of 19 candidates each."""
    a, b = (
        [FIRST_WORD, FIRST_CONTINUATION, UNK, 9, 30, 31, 32],
        [33, 10, 11, 34, 12, 13, 14, 15, 35, 36, 37, 38],
    )
    count = 20_000
    ids, types, starts = packed([(a, b)])
    length = len(ids)
    example_key = keys(1, "example", 0, np.arange(count))
    ids, types = np.tile(ids, count), np.tile(types, count)
    _, positions, _ = mask(ids, types, np.arange(count + 1) * length, example_key, RULES)
    counts = np.bincount(positions % length, minlength=length)
    assert counts[[0, 8, 21]].tolist() == [0, 0, 0]
    candidates = np.delete(counts, [0, 8, 21])
    expected = candidates.sum() / 19
    assert candidates.sum() == count * 3
    # Three of 19 without replacement: the variance is smaller than chi-square's by (1 - 3/19) * 19/18.
    assert ((candidates - expected) ** 2 / expected).sum() < 18 + 5 * 36**0.5


@modes
@given(examples=example_lists, order=st.randoms(use_true_random=False))
def test_an_example_is_masked_alike_in_every_batch(rules, examples, order):
    numbers = list(range(len(examples)))
    batch = packed(examples)
    whole = mask(*batch, keys_of(numbers), rules)
    order.shuffle(numbers)
    for chosen in (numbers, numbers[:1], numbers[1:]):
        if chosen:
            part = packed([examples[i] for i in chosen])
            result = mask(*part, keys_of(chosen), rules)
            for place, number in enumerate(chosen):
                assert by_example(part, result, place) == by_example(batch, whole, number)


@modes
def test_another_key_masks_other_tokens(rules):
    batch = packed([(list(range(FIRST_WORD, VOCABULARY)) * 3, [])] * 50)
    result = mask(*batch, keys_of(range(50)), rules)
    assert len({tuple(by_example(batch, result, number)[1]) for number in range(50)}) == 50


@pytest.mark.parametrize(
    ("rules", "places", "shown"),
    [
        (
            RULES,
            [1, 5, 13, 28, 33, 35, 44, 46, 57, 63, 67, 74, 81, 83, 84, 91, 104, 113],
            [4, 4, 4, 4, 26, 4, 4, 4, 4, 21, 4, 20, 4, 4, 12, 4, 4, 4],
        ),
        (
            WHOLE,
            [1, 2, 3, 13, 22, 35, 36, 44, 57, 63, 67, 68, 81, 84, 104, 113, 114, 116],
            [4, 4, 4, 4, 4, 4, 4, 4, 4, 21, 4, 4, 4, 12, 4, 4, 4, 4],
        ),
        (
            SPAN,
            [13, 14, 15, 16, 17, 18, 35, 36, 57, 73, 74, 81, 82, 104, 105, 106, 107, 108],
            [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        ),
        (
            NGRAM,
            [1, 2, 3, 13, 14, 15, 35, 36, 57, 63, 64, 65, 81, 84, 85, 86, 104, 116],
            [4, 4, 4, 4, 4, 4, 4, 4, 4, 21, 4, 26, 4, 12, 4, 32, 4, 4],
        ),
    ],
    ids=lambda value: getattr(value, "masking", None),
)
def test_masks_are_frozen(rules, places, shown):
    batch = packed([([8, 24, 25, 9, 10, 26, 11, 12, 27] * 4, [13, 28, 14, 15] * 5)] * 2)
    masked, positions, _ = mask(*batch, keys_of([3, 4]), rules)
    assert positions.tolist() == places
    assert masked[positions].tolist() == shown


def words_of(example: tuple[list[int], list[int]]) -> list[list[int]]:
    """Places in the example of the pieces of each word; runs over 10 pieces as single pieces."""
    found: list[list[int]] = []
    place = 1
    for segment in example:
        if not segment:
            continue
        words: list[list[int]] = []
        for number, piece in enumerate(segment):
            if number and piece >= FIRST_CONTINUATION:
                words[-1].append(place + number)
            else:
                words.append([place + number])
        for word in words:
            found += [word] if len(word) <= 10 else [[piece] for piece in word]
        place += len(segment) + 1
    return found


def expected_places(example: tuple[list[int], list[int]], example_key: np.ndarray) -> list[int]:
    """Words in the order of the key of their first piece; what does not fit is skipped; at least one word."""
    words = words_of(example)
    length = sum(len(segment) + 1 for segment in example if segment) + 1
    wanted = max(1, round(0.15 * length))
    order = sorted(words, key=lambda word: int(keys(0, "mask", 0, example_key, word[0])))
    taken: list[int] = []
    for word in order:
        if len(taken) + len(word) <= wanted:
            taken += word
    return sorted(taken or order[0][:wanted])


@given(examples=example_lists, salt=st.integers(0, 99))
def test_whole_words_are_those_of_the_brute_force_version(examples, salt):
    batch = packed(examples)
    example_key = keys_of(salt + np.arange(len(examples)))
    result = mask(*batch, example_key, WHOLE)
    for number, example in enumerate(examples):
        _, places, _ = by_example(batch, result, number)
        assert places == expected_places(example, example_key[number])
        length = int(batch[2][number + 1] - batch[2][number])
        assert 1 <= len(places) <= max(1, round(0.15 * length))


def test_a_word_never_reaches_over_a_separator():
    """B begins with a continuing piece (a sentence cut inside a word): it is a word of its own."""
    batch = packed([([FIRST_WORD], [FIRST_CONTINUATION])] * 200)
    _, positions, _ = mask(*batch, keys_of(range(200)), WHOLE)
    assert set((positions % 5).tolist()) == {1, 3}
    assert len(positions) == 200


def test_a_clause_without_spaces_counts_as_single_pieces():
    word, clause = [FIRST_WORD] + [FIRST_CONTINUATION] * 9, [FIRST_WORD] + [FIRST_CONTINUATION] * 10
    for text, singles in ((word, False), (clause, True)):
        batch = packed([(text * 6, [])] * 100)
        result = mask(*batch, keys_of(range(100)), WHOLE)
        for number in range(100):
            _, places, _ = by_example(batch, result, number)
            scattered = {(place - 1) // len(text) for place in places}
            assert (len(scattered) > 1) or not singles
            assert singles or (len(scattered) == 1 and len(places) in (9, 10))


def test_rules_of_a_tokenizer(small_tokenizer):
    rules = MaskingRules.of(small_tokenizer, "whole-word")
    vocabulary = small_tokenizer.vocabulary
    assert rules.masking == "whole-word"
    assert MaskingRules.of(small_tokenizer).masking == "token"
    assert vocabulary[rules.mask_id] == "[MASK]"
    assert {vocabulary[i] for i in rules.fixed_ids} == {"[PAD]", "[CLS]", "[SEP]"}
    left_out = {piece for piece, ordinary in zip(vocabulary, rules.is_ordinary, strict=True) if not ordinary}
    assert left_out == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"}


@pytest.mark.parametrize("masking", ["whole_word", "Token", ""])
def test_an_unknown_masking_is_refused(masking, small_tokenizer):
    with pytest.raises(PrepError, match="use token, whole-word, span, ngram"):
        MaskingRules.of(small_tokenizer, masking)
