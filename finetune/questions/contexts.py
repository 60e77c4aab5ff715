"""Questions with their contexts as sequences of tokens: overlapping windows, and where in the context each token is."""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.text.cells import JOINERS, words_apart
from data_prep.vocabulary.text_tokenizer import TextTokenizer

from ..batches import Encoded, overlapping, spans_of
from ..rows import Example
from .answers import Span

MOST_TOKENS = 30
"""Of an answer that is given."""
_TEXTS_AT_ONCE = 1024
Run = tuple[int, int]
"""(start, length) of the tokens of a text among those of all."""


@dataclass(frozen=True, kw_only=True)
class EncodedQuestions(Encoded):
    """n questions as windows, [CLS] question [SEP] a stretch of the context [SEP]. The items are [CLS] and every token
    of the context, in each window apart, so that items and places are the same.

    `targets` float32 [P, 2], for start and end of the answer: 1 / windows of the text at its first and its last token,
    or at [CLS] in a window that does not hold all of it; else 0.
    """

    characters: np.ndarray
    """int32 [len(ids), 2]: (start, end) of each token in its text."""
    answers: str
    """A digest of all answers, of which only the first ones are learned."""
    num_long_answers: int
    """First answers of more than MOST_TOKENS tokens."""
    num_parted_answers: int
    """First answers of which no window holds all."""

    def digest(self) -> str:
        """Of everything that is learned from, or judged by."""
        return super().digest() + self.answers

    def lost(self) -> str:
        """What answers cannot be learned or given."""
        long = f" Answers of more than {MOST_TOKENS} tokens, the most that is given: {self.num_long_answers:,}."
        parted = f" Answers that no window holds as a whole, learned as no answer: {self.num_parted_answers:,}."
        return long * (self.num_long_answers > 0) + parted * (self.num_parted_answers > 0)


def encode_questions(examples: Sequence[Example], tokenizer: TextTokenizer, sequence_length: int) -> EncodedQuestions:
    """Questions and contexts to sequences of at most `sequence_length` tokens (Devlin et al. 2019, section 4.2).

    A question keeps its beginning where it takes more than half of a sequence that cannot hold all. A context is stored
    once, however many questions it has.

    Args:
        examples: of a question and its context each.
    """
    ids, characters, where = _tokenized([text for row in examples for text in (row.text, row.text_pair)], tokenizer)
    separators = tokenizer.pair_separators
    capacity = sequence_length - 2 - separators
    laid = [_laid_out(row, where[row.text], where[row.text_pair], characters, capacity) for row in examples]
    counts = np.array([len(each.spans) for each in laid], dtype=np.int64)
    spans = np.array([span for each in laid for span in each.spans], dtype=np.int64).reshape(-1, 4)
    answers = np.array([answer for each in laid for answer in each.answers], dtype=np.int64).reshape(-1, 2)
    bounds, place = _places(spans, separators)
    targets = np.zeros((len(place), 2), dtype=np.float32)
    np.put_along_axis(targets, bounds[:-1, None] + answers, np.repeat(1 / counts, counts)[:, None], axis=0)
    return EncodedQuestions(
        ids=ids,
        sequences=spans_of(spans, np.zeros(len(spans), dtype=np.int64), separators),
        text=np.repeat(np.arange(len(laid)), counts),
        targets=targets,
        item=np.arange(len(place)),
        place=place,
        bounds=bounds,
        num_texts=len(laid),
        num_tokens=sum(each.num_tokens for each in laid),
        num_long=sum(each.num_tokens > capacity for each in laid),
        num_cut=sum(each.num_cut for each in laid),
        characters=characters,
        answers=hashlib.blake2b(repr([row.label for row in examples]).encode(), digest_size=16).hexdigest(),
        num_long_answers=sum(each.answer_length > MOST_TOKENS for each in laid),
        num_parted_answers=sum(
            bool(row.label) and not any(map(any, each.answers)) for row, each in zip(examples, laid, strict=True)
        ),
    )


class _Layout(NamedTuple):
    """The windows of a text."""

    spans: list[tuple[int, int, int, int]]
    """See `batches.spans_of`."""
    answers: list[tuple[int, int]]
    """Start and end of the answer among the places of each window."""
    num_tokens: int
    """Of question and context."""
    num_cut: int
    """Of the question, that are in no window."""
    answer_length: int
    """Of the first answer; 0 where there is none."""


def _laid_out(example: Example, question: Run, context: Run, characters: np.ndarray, capacity: int) -> _Layout:
    """How a question and its context are divided into windows of `capacity` tokens."""
    (asked_at, asked), (begin, length) = question, context
    kept = min(asked, max(capacity // 2, capacity - length))
    windows = overlapping(length, capacity - kept)
    first, last = -1, -1
    if example.label:
        first, last = tokens_of(example.label[0], characters[begin : begin + length])
    answers = []
    for start, size in windows:
        is_inside = start <= first <= last < start + size
        answers.append((first - start + 1, last - start + 1) if is_inside else (0, 0))
    spans = [(asked_at, kept, begin + start, size) for start, size in windows]
    return _Layout(spans, answers, asked + length, asked - kept, last - first + 1 if example.label else 0)


def tokens_of(answer: Span, characters: np.ndarray) -> tuple[int, int]:
    """The first and the last token that have characters of an answer; the last is before the first where none has.

    Args:
        characters: int [T, 2], of the tokens of the context.
    """
    first = np.searchsorted(characters[:, 1], answer[0], side="right")
    return int(first), int(np.searchsorted(characters[:, 0], answer[1], side="left")) - 1


def _places(spans: np.ndarray, separators: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the places of each sequence begin, int64 [S + 1], and their tokens: [CLS], then those of the context."""
    counts = spans[:, 3] + 1
    bounds = np.append(0, np.cumsum(counts))
    within = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
    # Before the context stand [CLS], the question and one [SEP] or two.
    return bounds, np.where(within == 0, 0, within + np.repeat(spans[:, 1] + separators, counts))


def _tokenized(texts: Sequence[str], tokenizer: TextTokenizer) -> tuple[np.ndarray, np.ndarray, dict[str, Run]]:
    """The tokens of different texts end to end, uint32 [T], their characters, int32 [T, 2], and where each text is."""
    different = list(dict.fromkeys(texts))
    ids: list[np.ndarray] = [np.zeros(0, np.uint32)]
    characters: list[np.ndarray] = [np.zeros((0, 2), np.int32)]
    for begin in range(0, len(different), _TEXTS_AT_ONCE):
        part = different[begin : begin + _TEXTS_AT_ONCE]
        for text, (of_text, spans) in zip(
            part, tokenizer.encode_with_places([words_apart(text, in_place=True) for text in part]), strict=True
        ):
            ids.append(np.array(of_text, dtype=np.uint32))
            characters.append(_with_marks(text, np.array(spans, dtype=np.int32).reshape(-1, 2)))
    ends = np.cumsum([len(each) for each in ids[1:]], dtype=np.int64).tolist()
    lengths = [len(each) for each in ids[1:]]
    placed = {text: (end - length, length) for text, end, length in zip(different, ends, lengths, strict=True)}
    return np.concatenate(ids), np.concatenate(characters), placed


def _with_marks(text: str, characters: np.ndarray) -> np.ndarray:
    """The characters of tokens, with the marks behind a token that normalisation left out: an accent belongs to its
    letter, and so does a joiner, which decides how it is written."""
    if text.isascii() or not len(characters):
        return characters
    found = characters.tolist()
    limit, of_last, marked = len(text), [], []
    for row in reversed(range(len(found))):
        # Pieces of one character share its marks.
        if found[row] != of_last:
            of_last, (start, end) = found[row], found[row]
            while end < limit and (text[end] in JOINERS or unicodedata.category(text[end])[0] == "M"):
                end += 1
            marked, limit = [start, end], start
        found[row] = marked
    return np.array(found, dtype=np.int32)
