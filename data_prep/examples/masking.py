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
from .choice import Choice, Targets, choose_tokens, choose_words
from .random_keys import below, uniform
from .spans import choose_ngrams, choose_spans

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


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
    mask_share: float = MASK_SHARE
    """Of the targets that become [MASK]."""
    random_share: float = RANDOM_SHARE
    """Of the targets that become a random entry; the rest stays as it is."""

    @classmethod
    def of(cls, tokenizer: WordPieceTokenizer, masking: str = "token") -> "MaskingRules":
        """The rules for a tokenizer; raises PrepError if there is no such masking in `MASKINGS`."""
        if masking not in MASKINGS:
            raise PrepError(f"there is no masking {masking!r}: use {', '.join(MASKINGS)}")
        fixed = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
        return cls(tokenizer.mask_id, fixed, tokenizer.starts_word, tokenizer.is_ordinary, masking=masking)


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
    choice = Choice(input_ids, token_type_ids, sequence, position, is_candidate, rules.starts_word, example_key, wanted)
    targets = MASKINGS[rules.masking](choice)
    masked = input_ids.copy()
    masked[targets.places] = _replacements(choice, targets, rules)
    return masked, targets.places, input_ids[targets.places]


def number_of_targets(lengths: Ints, candidates: Ints, probability: float) -> Ints:
    """max(1, round(probability * length with specials)), and never more than there are candidates: int64 [N]."""
    return np.minimum(np.maximum(1, np.rint(probability * lengths)), candidates).astype(np.int64)


MASKINGS: dict[str, Callable[[Choice], Targets]] = {
    "token": choose_tokens,
    "whole-word": choose_words,
    "span": choose_spans,
    "ngram": choose_ngrams,
}
"""How targets are chosen, by the name of the option."""


def _replacements(choice: Choice, targets: Targets, rules: MaskingRules) -> Ints:
    """What stands in the place of each target: [M]."""
    fate = uniform(choice.draws("replace", targets.drawn_at))
    ordinary = np.flatnonzero(rules.is_ordinary)
    drawn = ordinary[below(choice.draws("random word", targets.places), len(ordinary))]  # [M]
    random_or_kept = np.where(fate < rules.mask_share + rules.random_share, drawn, choice.input_ids[targets.places])
    return np.where(fate < rules.mask_share, rules.mask_id, random_or_kept)
