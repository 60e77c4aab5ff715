"""The vocabulary of a preparation: trained on its documents, or that of an existing BERT with entries of theirs."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import chain

import numpy as np

from ..errors import PrepError
from ..settings import PrepSettings
from ..text.corpus import Document
from .extension import new_entries
from .training import automatic_size, count_characters, enough_of, train_vocabulary
from .wordpiece import SPECIAL_TOKENS, WordPieceTokenizer

# Raise it when another vocabulary comes out of the same text: what an earlier version left unfinished is not used.
VERSION = 2
Documents = Callable[[], Iterable[Document]]
"""Gives the documents that a vocabulary is made from, as often as asked."""


def trained_tokenizer(prep: PrepSettings, documents: Documents) -> WordPieceTokenizer:
    """A tokenizer of its own for the documents.

    Raises:
        PrepError: they do not support `--vocab-size` entries.
    """
    size = None if prep.vocab_size == "auto" else prep.vocab_size
    options = {"lowercase": prep.lowercase, "strip_accents": prep.strip_accents}

    def keep(vocabulary: list[str]) -> list[str]:
        kept = shared_entries(WordPieceTokenizer(vocabulary, **options), documents, prep.min_documents)
        if len(kept) == len(SPECIAL_TOKENS):
            raise PrepError(f"nothing occurs in {prep.min_documents} documents: give a lower --min-documents")
        return kept

    may_go = keep if prep.min_documents > 1 else None
    return WordPieceTokenizer(train_vocabulary(_lines(documents), size, **options, keep=may_go), **options)


def extended_tokenizer(prep: PrepSettings, given: WordPieceTokenizer, documents: Documents) -> WordPieceTokenizer:
    """The given tokenizer with `--extend-vocab` entries of the documents.

    Raises:
        PrepError: they have fewer.
    """
    entries = _entries(prep, given, documents)
    if len(entries) < prep.extend_vocab:
        raise PrepError(f"the text has only {len(entries)} entries to add: use --extend-vocab {len(entries)}")
    return given.extended(entries)


def tokenizer_of_sample(
    prep: PrepSettings, given: WordPieceTokenizer | None, documents: Documents, share: float
) -> WordPieceTokenizer:
    """The tokenizer of the beginning of a corpus, filled up to as many entries as that of the whole will have.

    Args:
        share: which part of the whole the documents are.
    """
    if given:
        entries = _entries(prep, given, documents)
        return given.extended([*entries, *_unused(len(entries), prep.extend_vocab)])
    options = {"lowercase": prep.lowercase, "strip_accents": prep.strip_accents}
    vocabulary = train_vocabulary(_lines(documents), None, **options)
    whole = (count_characters(_lines(documents)) / share).astype(np.int64)
    wanted = automatic_size(whole) if prep.vocab_size == "auto" else prep.vocab_size
    return WordPieceTokenizer([*vocabulary[:wanted], *_unused(len(vocabulary), wanted)], **options)


def _entries(prep: PrepSettings, given: WordPieceTokenizer, documents: Documents) -> list[str]:
    """At most `--extend-vocab` new entries that `--min-documents` documents share."""
    wanted, least = prep.extend_vocab, prep.min_documents
    if least == 1:
        return new_entries(given, lambda: _lines(documents), wanted)

    def keep(entries: list[str]) -> list[str]:
        shared = set(shared_entries(given.extended(entries), documents, least))
        return [entry for entry in entries if entry in shared]

    return enough_of(partial(new_entries, given, lambda: _lines(documents)), keep, wanted)


def _lines(documents: Documents) -> Iterator[str]:
    return chain.from_iterable(document.lines for document in documents())


def _unused(start: int, end: int) -> list[str]:
    return [f"[unused_{number}]" for number in range(start, end)]


def shared_entries(tokenizer: WordPieceTokenizer, documents: Documents, least: int) -> list[str]:
    """The special tokens and the entries that occur in at least `least` documents, in their order: what one person
    alone wrote is no word of the model.

    Documents of one group (a patient, a case) count as one. A letter, or the form of it that continues a word, occurs
    where the letter stands in the text; a longer entry where the text has it, cut into pieces. What is left spells
    every word as before, in more pieces, but for words with a letter that is gone.
    """
    vocabulary = tokenizer.vocabulary
    letters = sorted({letter for entry in vocabulary if len(letter := entry.removeprefix("##")) == 1})
    number_of_letter = np.zeros(0x110000, dtype=np.int64)
    number_of_letter[[ord(letter) for letter in letters]] = np.arange(1, len(letters) + 1)
    with_piece, with_letter = Owners(len(vocabulary), least), Owners(len(letters) + 1, least)
    for number, document in enumerate(documents(), 1):
        owner = number if document.group is None else document.group
        pieces = [np.array(ids, dtype=np.int64) for ids in tokenizer.encode(document.lines)]
        with_piece.add(np.unique(np.concatenate(pieces)), owner)
        text = tokenizer.normalise("\n".join(document.lines))
        codes = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        with_letter.add(np.unique(number_of_letter[codes]), owner)
    counts = dict(zip(letters, with_letter.counts[1:].tolist(), strict=True))
    return [
        entry
        for entry, count in zip(vocabulary, with_piece.counts.tolist(), strict=True)
        if entry in SPECIAL_TOKENS or counts.get(entry.removeprefix("##"), count) >= least
    ]


class Owners:
    """How many different owners each of some things has, counted up to `most`.

    Attributes:
        counts: int64 [things].
    """

    def __init__(self, num_things: int, most: int):
        self.counts, self.most = np.zeros(num_things, dtype=np.int64), most
        # Of what has `most` of them they are forgotten.
        self._seen: defaultdict[int, set[Hashable]] = defaultdict(set)

    def add(self, things: np.ndarray, owner: Hashable) -> None:
        """Count an owner of some things: int64 [n], each once."""
        for thing in things[self.counts[things] < self.most].tolist():
            owners = self._seen[thing]
            owners.add(owner)
            self.counts[thing] = len(owners)
            if len(owners) == self.most:
                del self._seen[thing]
