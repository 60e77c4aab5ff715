"""Words of a text, by their places, and words as sequences of tokens."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from tokenizers.pre_tokenizers import BertPreTokenizer

from data_prep.examples import runs
from data_prep.text.cells import is_ideograph, words_apart
from data_prep.vocabulary.text_tokenizer import TextTokenizer

from .batches import Encoded, Stretch, overlapping, spans_of
from .settings import LongText

Span = tuple[int, int]
_PRE_TOKENIZER = BertPreTokenizer()


def words_of(text: str) -> list[Span]:
    """(start, end) of the words of a text as BERT cuts it: at white space, around punctuation and ideographs."""
    found: list[Span] = []
    for _, (start, end) in _PRE_TOKENIZER.pre_tokenize_str(words_apart(text, in_place=True)):
        begin = start
        for place in range(start, end):
            if is_ideograph(text[place]):
                found += [span for span in ((begin, place), (place, place + 1)) if span[0] < span[1]]
                begin = place + 1
        if begin < end:
            found.append((begin, end))
    return found


def joined(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Words with a blank between, and where each is."""
    spans, end = [], -1
    for word in words:
        start = end + 1
        end = start + len(word)
        spans.append((start, end))
    return " ".join(words), spans


def words_with_tokens(words: Sequence[Span], tokens: Sequence[Span]) -> tuple[list[Span], list[np.ndarray]]:
    """The words of a text of which a token has characters, and the tokens of each of these: int64.

    A token is of the word that it starts in. A word in which none starts has the token that reaches into it: two words
    in one piece share it. White space that is a token by itself has no place and is of no word.
    """
    places = np.array(tokens, dtype=np.int64).reshape(-1, 2)
    kept = np.flatnonzero(places[:, 0] < places[:, 1])
    starts, ends = places[kept].T
    bounds = np.searchsorted(starts, [start for start, _ in words] + [np.iinfo(np.int64).max])
    spans, own = [], []
    for word, first, last in zip(words, bounds, bounds[1:], strict=False):
        if first == last and first and ends[first - 1] > word[0]:
            first -= 1
        if first < last:
            spans.append(word)
            own.append(kept[first:last])
    return spans, own


# Windows that one token is in.
_MOST_AROUND = 3


def encode_words(
    texts: Sequence[tuple[str, Sequence[Span]]], targets: np.ndarray, tokenizer: TextTokenizer, sequence_length: int
) -> Encoded:
    """Texts with the places of their words to sequences of at most `sequence_length` tokens; a long text becomes
    overlapping windows.

    Each word is read once, at its first token, in the window where most of the text stands on both of its sides (Devlin
    et al. 2019, section 5.4, read the first piece of a word).

    Args:
        targets: [I] or [I, K], what is to be learned of each word, text after text.
    """
    capacity = sequence_length - 2
    nothing = np.zeros(0, dtype=np.int64)
    kept, table, owners, counts, items, places = [], [], [], [], [nothing], [nothing]
    begin = word = num_long = 0
    encoded = tokenizer.encode_words([(words_apart(text, in_place=True), words) for text, words in texts])
    for number, (ids, firsts) in enumerate(encoded):
        first = np.array(firsts, dtype=np.int64)
        windows = overlapping(len(ids), capacity)
        starts = np.array([window.start for window in windows])
        best = _window_of(first, starts, windows[0].length)
        order = np.argsort(best, kind="stable")
        items.append(word + order)
        places.append((first - starts[best] + 1)[order])
        counts += np.bincount(best, minlength=len(windows)).tolist()
        table += [(begin + span.start, span.length, 0, 0) for span in windows]
        owners += [number] * len(windows)
        kept.append(np.array(ids, dtype=np.uint32))
        num_long += len(windows) > 1
        begin, word = begin + len(ids), word + len(first)
    assert word == sum(len(words) for _, words in texts), "a token for each word"
    return Encoded(
        ids=np.concatenate([np.zeros(0, np.uint32), *kept]),
        sequences=spans_of(np.array(table, dtype=np.int64).reshape(-1, 4), np.zeros(len(table), dtype=np.int64)),
        text=np.array(owners, dtype=np.int64),
        targets=targets,
        item=np.concatenate(items),
        place=np.concatenate(places),
        bounds=np.append(0, np.cumsum(counts)).astype(np.int64),
        num_texts=len(texts),
        num_tokens=begin,
        num_long=num_long,
        num_cut=0,
    )


Read = Literal["first", "all", "tokens"]


def encode_tokens(texts: Sequence[Sequence[int]], sequence_length: int, long_text: LongText, read: Read) -> Encoded:
    """Texts of tokens to sequences of at most `sequence_length` tokens, and the tokens of them that are read.

    Args:
        long_text: head keeps the beginning, windows everything, in overlapping sequences.
        read: "first", the [CLS] of each sequence of a text. "all", every token of a text once, in the window where most
            of the text stands on both of its sides, with the [CLS] of the first window and the [SEP] of the last: as if
            the text were one sequence. "tokens", the same without [CLS] and [SEP], each an item of its own.
    """
    capacity = sequence_length - 2
    kept = [len(ids) if long_text == "windows" else min(len(ids), capacity) for ids in texts]
    rows: list[tuple[int, int, int, int, int]] = []
    begin = num_long = 0
    for number, (ids, length) in enumerate(zip(texts, kept, strict=True)):
        num_long += len(ids) > capacity
        windows = overlapping(length, capacity)
        for span, (start, count) in zip(windows, _read_in(windows, length, read), strict=True):
            rows.append((number, begin + span.start, span.length, start - span.start, count))
        begin += length
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    owner, first, counts = table[:, 0], table[:, 3], table[:, 4]
    place = runs(first, counts)
    # A sequence begins with [CLS].
    item = np.repeat(table[:, 1], counts) + place - 1 if read == "tokens" else np.repeat(owner, counts)
    nothing = np.zeros(0, dtype=np.uint32)
    return Encoded(
        ids=np.concatenate([nothing, *(np.asarray(ids[:n], np.uint32) for ids, n in zip(texts, kept, strict=True))]),
        sequences=spans_of(np.pad(table[:, 1:3], ((0, 0), (0, 2))), np.zeros(len(table), dtype=np.int64)),
        text=owner,
        targets=np.zeros(begin if read == "tokens" else len(texts), dtype=np.int64),
        item=item,
        place=place,
        bounds=np.append(0, np.cumsum(counts)),
        num_texts=len(texts),
        num_tokens=sum(map(len, texts)),
        num_long=num_long,
        num_cut=sum(map(len, texts)) - begin,
    )


def _read_in(windows: Sequence[Stretch], length: int, read: Read) -> list[tuple[int, int]]:
    """What is read in each window of a text: the first place and how many, where 1 is the first token of the text and 0
    the [CLS] before it."""
    if read == "first":
        return [(window.start, 1) for window in windows]
    ends = np.array([length])
    if len(windows) > 1:
        starts = np.array([window.start for window in windows])
        best = _window_of(np.arange(length), starts, windows[0].length)
        ends = np.cumsum(np.bincount(best, minlength=len(windows)))
    borders = [1, *(ends + 1).tolist()]
    if read == "all":
        borders[0], borders[-1] = 0, borders[-1] + 1
    return [(start, end - start) for start, end in zip(borders, borders[1:], strict=False)]


def _window_of(places: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Of the windows of one length [W], the one where each token [n] is farthest from an end of a window that is no end
    of the text: int64 [n]."""
    last = np.searchsorted(starts, places, side="right") - 1
    # Three quarters of a window lie between two, and less before the last one: a token is in no more than these.
    candidates = np.maximum(last[:, None] - np.arange(_MOST_AROUND)[::-1], 0)  # [n, 3]
    before = (places[:, None] - starts[candidates]).astype(np.float64)
    after = length - 1 - before
    is_outside = after < 0
    # Nothing is missing before the first window and behind the last.
    before[candidates == 0], after[candidates == len(starts) - 1] = np.inf, np.inf
    room = np.where(is_outside, -1.0, np.minimum(before, after))
    return np.take_along_axis(candidates, room.argmax(1)[:, None], 1)[:, 0]
