"""A WordPiece vocabulary out of text: the same list from the same text, on every machine.

The trainer of `tokenizers` breaks ties by token id and gives the continuing letters (`##a`) their ids in
hash order, so two runs on one text differ. Here every letter and continuing letter is known and sorted before
training starts; what is left (joining the most frequent pair of the words counted) does not depend on threads,
processes or hash seeds.

The trainer needs some 100 bytes for each character of the different words, of which text with ids, hashes or serial
numbers has no end. So words are counted first, in bounded memory, and the trainer sees only those that are left.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from ..errors import PrepError
from .word_counts import WordCounts
from .wordpiece import SPECIAL_TOKENS, bert_normalizer

SIZE_MULTIPLE, LEAST_SIZE = 64, 128
COVERAGE = 0.9995
"""Share of a text that its letters should make; the rest is [UNK] (as in SentencePiece for Chinese and Japanese)."""

MOST_CANDIDATES = 200_000
"""Entries that are looked at, where few of them may stay."""

_CHUNK = 1 << 16  # characters handed to the trainer at once


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int | None = None,
    *,
    lowercase: bool = True,
    strip_accents: bool = False,
    keep: Callable[[list[str]], list[str]] | None = None,
) -> list[str]:
    """Train a WordPiece vocabulary; the same texts and options give the same list on every machine.

    Pairs are joined by frequency (Sennrich et al. 2016, section 3.2), for BERT (Devlin et al. 2019). The list begins
    with the five special tokens ([PAD] is 0); letters, continuing letters and joined pieces follow.

    Words of more than 100 characters are ignored, because BERT reads them as [UNK], and so are the rare ones of very
    many different words (see `WordCounts`). Letters are counted in all words.

    Args:
        texts: read once, and never held in memory.
        vocab_size: length of the list. None: it follows from the amount of text, shrinks to what the text supports, and
            is filled up to a multiple of 64 with [unused0], [unused1], ...
        keep: returns those of the entries that may stay; more are trained, so that enough should remain.

    Raises:
        PrepError: the text does not support `vocab_size` entries, or nothing at all.
    """
    normalizer = bert_normalizer(lowercase, strip_accents)
    counts, words = _count(texts, normalizer)
    size = automatic_size(counts) if vocab_size is None else vocab_size
    frequent = _frequent_letters(counts, normalizer)
    letters, continuing = _alphabet(frequent, size)
    if not letters:
        raise PrepError("no character occurs twice in the text, so no vocabulary can be trained: give more text")

    is_final = keep is None or vocab_size is None

    def trained(size: int) -> list[str]:
        # The words are used up, unless they may be needed again.
        given = words if is_final else words.copy()
        return _filled(_join_pairs(given, size, letters, continuing), size, frequent)

    if keep is None:
        vocabulary = trained(size)
    else:
        # What may not stay can be most of it; "auto" shrinks instead.
        vocabulary = enough_of(trained, keep, size, most=2 * size if is_final else MOST_CANDIDATES)
    if vocab_size is None:
        fill = -len(vocabulary) % SIZE_MULTIPLE
        return vocabulary + [f"[unused{i}]" for i in range(fill)]
    if len(vocabulary) < vocab_size:
        supported = len(vocabulary) // SIZE_MULTIPLE * SIZE_MULTIPLE
        remedy = f"{supported} (or auto)" if supported >= LEAST_SIZE else "auto"
        raise PrepError(
            f"the text supports only {len(vocabulary)} WordPiece entries, "
            f"fewer than --vocab-size {vocab_size}: use --vocab-size {remedy}"
        )
    return vocabulary


def enough_of(
    candidates: Callable[[int], list[str]],
    keep: Callable[[list[str]], list[str]],
    wanted: int,
    most: int = MOST_CANDIDATES,
) -> list[str]:
    """Of more and more candidates those that may stay, until there are as many as wanted, or no further ones; if there
    never are, the most that there were.

    Args:
        candidates: gives that many, or all that there are.
        most: candidates from which on no more are asked for.
    """
    kept: list[str] = []
    asked = 2 * wanted
    while True:
        found = candidates(asked)
        # Fewer may stay of more candidates: whole words take the place of their pieces.
        kept = max(kept, keep(found)[:wanted], key=len)
        if len(kept) == wanted or len(found) < asked or asked >= most:
            return kept
        asked *= 2


def count_characters(texts: Iterable[str]) -> np.ndarray:
    """How often each Unicode code point occurs: int64 [0x110000]."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for chunk in chunks(texts):
        _add_characters(counts, chunk)
    return counts


def _count(texts: Iterable[str], normalizer: normalizers.Normalizer) -> tuple[np.ndarray, Counter[str]]:
    """How often each code point occurs, and each word as the vocabulary spells it."""
    characters, words = np.zeros(0x110000, dtype=np.int64), WordCounts(normalizer)
    for chunk in chunks(texts):
        _add_characters(characters, chunk)
        words.add(chunk)
    return characters, words.result()


def _add_characters(counts: np.ndarray, text: str) -> None:
    seen = np.bincount(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
    counts[: len(seen)] += seen


def automatic_size(character_counts: np.ndarray) -> int:
    """Entries for this much text: 8,192 under 20 MB of UTF-8, 16,384 under 200 MB, else 30,528."""
    width_ends = (0x80, 0x800, 0x10000)
    size_in_bytes = character_counts.sum() + sum(character_counts[end:].sum() for end in width_ends)
    return 8_192 if size_in_bytes < 20e6 else 16_384 if size_in_bytes < 200e6 else 30_528


def chunks(texts: Iterable[str]) -> Iterator[str]:
    """Gather short texts and cut long ones: the trainer's memory and speed do not depend on their lengths."""
    waiting: list[str] = []
    length = 0
    for text in texts:
        start = 0
        while len(text) - start > _CHUNK:
            space = text.rfind(" ", start, start + _CHUNK)
            end = space + 1 if space > start else start + _CHUNK
            yield text[start:end]
            start = end
        waiting.append(text[start:] if start else text)
        length += len(waiting[-1]) + 1
        if length > _CHUNK:
            yield "\n".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield "\n".join(waiting)


@dataclass(frozen=True)
class _Letter:
    """A normalised character that occurs twice or more."""

    letter: str
    count: int
    continues: bool
    """False where it is always a word of its own (punctuation, Chinese), and needs no continuing form."""

    def entries(self) -> list[str]:
        return [self.letter, *[f"##{self.letter}"] * self.continues]


def _frequent_letters(counts: np.ndarray, normalizer: normalizers.Normalizer) -> list[_Letter]:
    """Those of a text, the most frequent first, from counts of code points."""
    normalised = normalised_counts(counts, normalizer.normalize_str)
    found = [
        _Letter(letter, n, continues_word(letter, normalizer.normalize_str))
        for letter, n in normalised.items() if n >= 2
    ]  # fmt: skip
    return sorted(found, key=lambda each: (-each.count, each.letter))


def _alphabet(frequent: list[_Letter], size: int) -> tuple[list[str], list[str]]:
    """The letters that a vocabulary begins with and their continuing forms, each sorted by code point.

    They are a quarter of its entries, or 1,000 if that is more. Where these make less than 99.95 % of the text, as in
    Chinese, more are taken, up to half of the entries. The rest is for what is joined.
    """
    letters, continuing = [], []
    for each in frequent[: max(1000, size // 4, min(_needed(frequent), size // 2))]:
        if len(SPECIAL_TOKENS) + len(letters) + len(continuing) + 1 + each.continues > size:
            break
        letters.append(each.letter)
        continuing += each.entries()[1:]
    return sorted(letters), sorted(continuing)


def _needed(frequent: list[_Letter]) -> int:
    """How many of the letters make 99.95 % both of those that words are written with and of those that are words."""
    needed = 0
    for continues in (True, False):
        places = [place for place, each in enumerate(frequent) if each.continues == continues]
        covered = np.cumsum([frequent[place].count for place in places])
        if places:
            needed = max(needed, places[int(np.searchsorted(covered, COVERAGE * covered[-1]))] + 1)
    return needed


def _filled(vocabulary: list[str], size: int, frequent: list[_Letter]) -> list[str]:
    """A vocabulary for which too little could be joined, filled up with the most frequent letters that it lacks."""
    known = set(vocabulary)
    entries = (entry for each in frequent if each.letter not in known for entry in each.entries())
    return [*vocabulary, *islice(entries, max(0, size - len(vocabulary)))]


def normalised_counts(counts: np.ndarray, normalise: Callable[[str], str]) -> dict[str, int]:
    """How often each letter occurs after normalisation, from counts of code points: int64 [0x110000]."""
    normalised: dict[str, int] = {}
    for code in np.flatnonzero(counts):
        for letter in normalise(chr(code)):
            if not letter.isspace():
                normalised[letter] = normalised.get(letter, 0) + int(counts[code])
    return normalised


def continues_word(letter: str, normalise: Callable[[str], str]) -> bool:
    """Whether a letter can stand within a word, and is not a word of its own, as punctuation and Chinese are."""
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalise("a" + letter))) == 1


def _join_pairs(words: Counter[str], size: int, letters: list[str], continuing: list[str]) -> list[str]:
    # Only special tokens take their ids before the trainer meets the text in hash order, so the continuing
    # letters are passed as such; they would match inside text, so only the names leave this function.
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *continuing],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_written_out(words), trainer)
    ids = tokenizer.get_vocab()
    first = [*SPECIAL_TOKENS, *letters, *continuing]
    return first + sorted(ids.keys() - set(first), key=ids.__getitem__)


def _written_out(words: Counter[str]) -> Iterator[str]:
    """Each word as often as it occurs, spaces between: the trainer takes texts, not counts. Empties the counter."""
    waiting: list[str] = []
    length = 0
    while words:
        word, left = words.popitem()
        while left:
            times = min(left, _CHUNK // len(word))
            waiting.append(f"{word} " * times)
            left, length = left - times, length + len(waiting[-1])
            if length > _CHUNK:
                yield "".join(waiting)
                waiting, length = [], 0
    yield "".join(waiting)
