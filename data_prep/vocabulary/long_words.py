"""Words that no vocabulary can hold: sequences, base64, lines without a space."""

from functools import cache

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from .wordpiece import LONGEST_WORD, bert_normalizer


def runs(text: bytes, least: int) -> list[tuple[int, int]]:
    """Begin and end of each run of `least` bytes or more without white space (of ASCII) in UTF-8 text."""
    spaces = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) <= ord(" "))
    bounds = np.concatenate([[-1], spaces, [len(text)]])
    long = np.flatnonzero(np.diff(bounds) > least)
    return list(zip((bounds[long] + 1).tolist(), bounds[long + 1].tolist(), strict=True))


def words(run: str) -> list[str]:
    """The words that BERT sees in a run, which it cuts at punctuation and around Chinese characters."""
    return [word for word, _ in _cutter().pre_tokenize_str(_cleaner().normalize_str(run))]


def long_words(text: bytes, longest_word: int = LONGEST_WORD) -> list[str]:
    """Words of more than this many characters in UTF-8 text; each becomes one [UNK]."""
    found = []
    # A character has a byte at least.
    for start, end in runs(text, longest_word + 1):
        found += [word for word in words(text[start:end].decode("utf-8", "replace")) if len(word) > longest_word]
    return found


@cache
def _cleaner() -> normalizers.Normalizer:
    return bert_normalizer(lowercase=False, strip_accents=False)


@cache
def _cutter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.BertPreTokenizer()
