"""Words that BERT reads as one [UNK], against the tokenizer itself."""

import random
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import text_checks
from data_prep.text_checks import TextChecks, long_words, runs_without_space
from data_prep.vocabulary.training import train_vocabulary
from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, build_tokenizer

# U+200B is dropped: what stands around it is one word.
LETTERS = "abÄß中-./é\u200b"
VOCABULARY = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TOKENIZER = build_tokenizer(VOCABULARY, lowercase=False, strip_accents=False)
WORDS = st.builds(lambda word, times: word * times, st.text(LETTERS, min_size=1, max_size=3), st.integers(1, 130))
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", "\n", "\t", "\u3000", ""]))).map(
    lambda parts: "".join(word + space for word, space in parts)
)


def cut(text: str) -> list[str]:
    """The words that the tokenizer sees."""
    cleaned = TOKENIZER.normalizer.normalize_str(text)
    return [word for word, _ in TOKENIZER.pre_tokenizer.pre_tokenize_str(cleaned)]


@pytest.mark.parametrize("limit", [100, 20])
@given(TEXTS)
def test_long_words_are_those_that_the_tokenizer_does_not_know(limit, text):
    found = long_words(text.encode(), limit)
    assert found == [word for word in cut(text) if len(word) > limit]
    # All letters are in the vocabulary.
    tokenizer = build_tokenizer(VOCABULARY, lowercase=False, strip_accents=False, longest_word=limit)
    assert len(found) == tokenizer.encode(text, add_special_tokens=False).tokens.count("[UNK]")


@given(TEXTS)
def test_a_run_has_the_same_words_in_pieces(text):
    pieces = re.compile(text_checks._PIECES.pattern.replace("100000", "7"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_checks, "_PIECES", pieces)
        assert long_words(text.encode(), 20) == [word for word in cut(text) if len(word) > 20]


def test_a_long_line_of_chinese_is_looked_at_in_pieces():
    """The words of all of it at once would take hundreds of megabytes. Without a place for a long word, none is looked
    at, which would take a second a megabyte."""
    sizes = []
    with pytest.MonkeyPatch.context() as patch:
        normalizer = SimpleNamespace(normalize_str=lambda piece: sizes.append(len(piece)) or "")
        patch.setattr(text_checks, "_cleaner", lambda: normalizer)
        long_words(("\u4e2d" * 250_000 + "a" * 101).encode())
        assert sizes == [100_000, 100_000, 50_101]
        long_words((("\u4e2d" * 250_000 + "a" * 100) * 2).encode())
        assert sizes == [100_000, 100_000, 50_101]


@pytest.mark.parametrize("limit", [100, 20])
@given(TEXTS)
def test_the_checks_count_them_all(limit, text):
    checks = TextChecks(limit)
    checks.add(text.split("\n"), text.encode())
    assert checks.numbers()["long_words"] == sum(len(word) > limit for word in cut(text))


@given(st.text("a \n\té"), st.integers(1, 9))
def test_runs_are_those_between_spaces(text, least):
    encoded = text.encode()
    found = [encoded[start:end] for start, end in runs_without_space(encoded, least)]
    between = encoded.replace(b"\n", b" ").replace(b"\t", b" ").split(b" ")
    assert found == [word for word in between if len(word) >= least]


@pytest.mark.parametrize("size", [256, None])
def test_a_vocabulary_is_the_same_with_sequences_among_the_text(size):
    rng = random.Random(3)
    words = ["".join(rng.choices("acdefghiklmnpqrstvwy", k=rng.randint(2, 7))) for _ in range(400)]
    lines = [" ".join(rng.choices(words, k=9)) + "." for _ in range(900)]
    protein = ["".join(rng.choices("acdefghiklmnpqrstvwy", k=300)) for _ in range(40)]
    among = [line for pair in zip(lines, protein * 30, strict=False) for line in pair]
    assert train_vocabulary(among, size) == train_vocabulary(lines, size)
