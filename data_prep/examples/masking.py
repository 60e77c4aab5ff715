"""Which tokens are predicted, and what stands in their place: 80 % [MASK], 10 % random, 10 % unchanged.

Masked language modelling after Devlin et al. 2019 (BERT, section 3.1, task 1 and appendix A.1). The number of
targets is exact in every example, not a coin per token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import PrepError
from ..vocabulary.wordpiece import WordPieceTokenizer
from . import Bools, Ints, Keys
from .random_keys import below, keys, uniform

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
# Longer runs of continuing pieces are clauses of a script without spaces, not words.
MOST_PIECES = 10


@dataclass(frozen=True)
class MaskingRules:
    """What masking needs to know of the vocabulary.

    `starts_word` and `is_ordinary` are bool [V]: the piece does not begin with `##`; the entry is neither a special
    token nor [unused]. `fixed_ids` are never predicted and never replaced: [PAD], [CLS], [SEP].
    """

    mask_id: int
    fixed_ids: tuple[int, ...]
    starts_word: Bools
    is_ordinary: Bools
    probability: float = 0.15
    masking: str = "token"
    """How the targets are chosen: a name in `MASKINGS`."""

    @classmethod
    def of(cls, tokenizer: WordPieceTokenizer, masking: str = "token") -> "MaskingRules":
        """The rules for a tokenizer; raises PrepError if there is no such masking in `MASKINGS`."""
        if masking not in MASKINGS:
            raise PrepError(f"there is no masking {masking!r}: use {' or '.join(MASKINGS)}")
        fixed = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
        return cls(tokenizer.mask_id, fixed, tokenizer.starts_word, tokenizer.is_ordinary, masking=masking)


@dataclass(frozen=True)
class Choice:
    """A packed batch as a masking sees it."""

    input_ids: Ints
    """[T]"""
    token_type_ids: Ints
    """[T]"""
    sequence: Ints
    """[T], the sequence of each token."""
    is_candidate: Bools
    """[T], whether it may be a target."""
    key: Keys
    """[T], random."""
    wanted: Ints
    """[N], how many targets each sequence is to have."""


def mask(
    input_ids: Ints, token_type_ids: Ints, sequence_starts: Ints, example_key: Keys, rules: MaskingRules
) -> tuple[Ints, Ints, Ints]:
    """Mask a packed batch. Each example is masked alike in whatever batch it comes.

    Args:
        input_ids, token_type_ids: int64 [T], examples end to end.
        sequence_starts: int64 [N + 1].
        example_key: uint64 [N], one random key an example; it alone decides the draws of that example.

    Returns:
        The ids after replacement [T], masked positions [M] in ascending order, and the original ids there [M].
    """
    lengths = np.diff(sequence_starts)  # [N]
    sequence = np.repeat(np.arange(len(lengths)), lengths)  # [T]
    position = np.arange(len(input_ids)) - sequence_starts[sequence]
    is_candidate = ~np.isin(input_ids, rules.fixed_ids)
    candidates = np.bincount(sequence[is_candidate], minlength=len(lengths))  # [N]
    wanted = number_of_targets(lengths, candidates, rules.probability)
    key = keys(0, "mask", 0, example_key[sequence], position)  # [T]
    choice = Choice(input_ids, token_type_ids, sequence, is_candidate, key, wanted)
    chosen = MASKINGS[rules.masking](choice, rules)  # [M]
    targets = input_ids[chosen]
    masked = input_ids.copy()
    masked[chosen] = _replacements(targets, example_key[sequence[chosen]], position[chosen], rules)
    return masked, chosen, targets


def number_of_targets(lengths: Ints, candidates: Ints, probability: float) -> Ints:
    """max(1, round(probability * length with specials)), and never more than there are candidates: int64 [N]."""
    return np.minimum(np.maximum(1, np.rint(probability * lengths)), candidates).astype(np.int64)


def _by_sequence_and_key(sequence: Ints, key: Keys) -> Ints:
    """Order by sequence, then by the upper 40 bits of the key, in one sort."""
    return np.argsort((sequence.astype(np.uint64) << np.uint64(40)) | (key >> np.uint64(24)), kind="stable")


def _choose_tokens(choice: Choice, rules: MaskingRules) -> Ints:
    """Places [M] of the candidates with the smallest keys of each sequence, as many as are wanted."""
    sequence, wanted = choice.sequence, choice.wanted
    places = np.flatnonzero(choice.is_candidate)  # [K]
    order = places[_by_sequence_and_key(sequence[places], choice.key[places])]
    per_sequence = np.bincount(sequence[places], minlength=len(wanted))  # [N]
    begins = np.cumsum(per_sequence) - per_sequence
    rank = np.arange(len(order)) - begins[sequence[order]]  # [K]
    return np.sort(order[rank < wanted[sequence[order]]])  # [M]


def _word_starts(choice: Choice, starts_word: Bools) -> Bools:
    """Bool [T]: a word starts here. Words end at segment borders; over-long runs fall into single pieces."""
    is_fixed = ~choice.is_candidate
    start = starts_word[choice.input_ids] | is_fixed
    start[:1] = True
    start[1:] |= (np.diff(choice.sequence) != 0) | (np.diff(choice.token_type_ids) != 0) | is_fixed[:-1]
    word = np.cumsum(start) - 1
    return start | (np.bincount(word)[word] > MOST_PIECES)


def _choose_words(choice: Choice, rules: MaskingRules) -> Ints:
    """Places [M] of words in the order of their keys, as many pieces as are wanted; a word that does not fit is passed
    over.

    Where not even one word fits, the first one gives as many pieces as are wanted.
    """
    word_start, wanted = _word_starts(choice, rules.starts_word), choice.wanted
    first = np.flatnonzero(word_start & choice.is_candidate)  # [W]
    sizes = np.diff(np.append(np.flatnonzero(word_start), len(word_start)))[choice.is_candidate[word_start]]
    order = _by_sequence_and_key(choice.sequence[first], choice.key[first])
    first, sizes = first[order], sizes[order]
    owner = choice.sequence[first]
    words = np.bincount(owner, minlength=len(wanted))  # [N]
    begins = np.cumsum(words) - words
    left = wanted.copy()
    take = np.zeros(len(first), dtype=np.int64)  # [W]
    # Rank by rank over all sequences at once: one step a word would be a Python loop over the text.
    for rank in range(int(words.max(initial=0))):
        active = np.flatnonzero((words > rank) & (left > 0))
        if not len(active):
            break
        place = begins[active] + rank
        fits = sizes[place] <= left[active]
        take[place[fits]] = sizes[place[fits]]
        left[active[fits]] -= sizes[place[fits]]
    nothing = np.flatnonzero((left == wanted) & (wanted > 0))
    take[begins[nothing]] = wanted[nothing]
    begin = np.repeat(first, take)  # [M]
    within = np.arange(len(begin)) - np.repeat(np.cumsum(take) - take, take)
    return np.sort(begin + within)


MASKINGS: dict[str, Callable[[Choice, MaskingRules], Ints]] = {"token": _choose_tokens, "whole-word": _choose_words}
"""How targets are chosen, by the name of the option: places [M] in ascending order."""


def _replacements(targets: Ints, example_key: Keys, position: Ints, rules: MaskingRules) -> Ints:
    """What stands in the place of each target: [M]."""
    fate = uniform(keys(0, "replace", 0, example_key, position))
    ordinary = np.flatnonzero(rules.is_ordinary)
    drawn = ordinary[below(keys(0, "random word", 0, example_key, position), len(ordinary))]  # [M]
    random_or_kept = np.where(fate < MASK_SHARE + RANDOM_SHARE, drawn, targets)
    return np.where(fate < MASK_SHARE, rules.mask_id, random_or_kept)
