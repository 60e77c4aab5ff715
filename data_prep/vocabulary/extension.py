"""Entries that a corpus adds to the vocabulary of an existing BERT: those that shorten its text most."""

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain, islice

import numpy as np

from .training import chunks, continues_word, count_characters, normalised_counts
from .word_counts import FrequentCounts
from .wordpiece import WordPieceTokenizer

# Of 65,536 characters each; what is made of them takes some forty times their bytes.
_CHUNKS_AT_ONCE = 32
# Entries are chosen in rounds. After each round the words are cut again: later entries are judged by what earlier ones
# left over.
_ROUNDS = 8
# Longer runs of pieces hardly occur twice.
_LONGEST_RUN = 16
# Those with the most pieces to save, which bounds memory and time.
_MOST_WORDS = 200_000
# Of all different words together; the rare ones of more are dropped.
_MOST_PIECES = 1 << 22
# A letter that the vocabulary lacks is added where it stands so often, and all of them take at most this share.
_FREQUENT_LETTER, _LETTERS_SHARE = 20, 0.25

Texts = Callable[[], Iterable[str]]


def new_entries(tokenizer: WordPieceTokenizer, texts: Texts, count: int) -> list[str]:
    """At most `count` entries that the vocabulary lacks.

    First frequent letters, without which whole words are [UNK]. Then what shortens the texts most: an entry stands for
    a run of pieces within words, and saves all of them but one wherever the run occurs; it has to save two at least.

    Args:
        tokenizer: whose vocabulary is to be extended.
        texts: gives those of the corpus, twice the same.
    """
    letters = missing_letters(tokenizer, texts(), int(_LETTERS_SHARE * count))
    extended = tokenizer.extended(letters)
    words = words_in_pieces(extended, texts())
    known, chosen = set(extended.vocabulary), []
    cuts = {word: cut(word, known) for word in words}
    left = wanted = count - len(letters)
    while left > 0 and (best := _best(cuts, words, min(left, -(-wanted // _ROUNDS)))):
        chosen += best
        known.update(best)
        cuts = {word: pieces for word in cuts if len(pieces := cut(word, known)) > 1}
        left -= len(best)
    return letters + chosen


def missing_letters(tokenizer: WordPieceTokenizer, texts: Iterable[str], most: int) -> list[str]:
    """Letters that occur often, the most frequent first, and the forms in which they go on within a word: those of them
    that the vocabulary lacks."""
    counts, known = normalised_counts(count_characters(texts), tokenizer.normalise), set(tokenizer.vocabulary)
    frequent = [letter for letter, n in counts.items() if n >= _FREQUENT_LETTER]
    entries: list[str] = []
    for letter in sorted(frequent, key=lambda letter: (-counts[letter], letter)):
        forms = [letter, f"##{letter}"] if continues_word(letter, tokenizer.normalise) else [letter]
        forms = [form for form in forms if form not in known]
        if len(entries) + len(forms) > most:
            break
        entries += forms
    return entries


def _best(cuts: dict[str, list[str]], words: Counter[str], count: int) -> list[str]:
    """At most `count` runs that save most, none of which is mostly in words that better ones change."""
    savings: Counter[str] = Counter()
    for word, pieces in cuts.items():
        for entry, saved in _runs(pieces):
            savings[entry] += saved * words[word]
    ranked = heapq.nsmallest(4 * count, savings, key=lambda entry: (-savings[entry], entry))
    places: dict[str, list[tuple[str, int]]] = {entry: [] for entry in ranked if savings[entry] >= 2}
    for word, pieces in cuts.items():
        for entry, saved in _runs(pieces):
            if entry in places:
                places[entry].append((word, saved))
    best: list[str] = []
    changed: set[str] = set()
    for entry, found in places.items():
        saved = sum(saved * words[word] for word, saved in found if word not in changed)
        if 2 * saved >= savings[entry]:
            best.append(entry)
            changed.update(word for word, _ in found)
            if len(best) == count:
                break
    return best


def words_in_pieces(tokenizer: WordPieceTokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs that the tokenizer cuts into several pieces; the word as the vocabulary spells it.

    Of very many words the rare ones are dropped (see `FrequentCounts`).
    """
    counts = FrequentCounts(_MOST_PIECES)
    left = chunks(texts)
    while some := list(islice(left, _CHUNKS_AT_ONCE)):
        ids = np.fromiter(chain.from_iterable(tokenizer.encode(some)), dtype=np.int64)
        # A text begins with the start of a word.
        starts = np.append(np.flatnonzero(tokenizer.starts_word[ids]), len(ids))
        several = np.flatnonzero(np.diff(starts) > 1)
        flat = ids.tolist()
        bounds = zip(starts[several].tolist(), starts[several + 1].tolist(), strict=True)
        counts.update(Counter(tuple(flat[start:end]) for start, end in bounds))
    words: Counter[str] = Counter()
    for pieces, count in counts.counts.items():
        words["".join(tokenizer.vocabulary[piece].removeprefix("##") for piece in pieces)] += count
    return Counter(dict(words.most_common(_MOST_WORDS)))


def cut(word: str, vocabulary: Container[str]) -> list[str]:
    """A word, or the continuation "##..." of one, in pieces, the longest first from the left (Wu et al. 2016).

    [] for a word that the vocabulary cannot spell.
    """
    pieces, prefix = [], ""
    if word.startswith("##") and len(word) > 2:
        word, prefix = word[2:], "##"
    start = 0
    while start < len(word):
        end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return []
        pieces.append(prefix + word[start:end])
        start, prefix = end, "##"
    return pieces


def _runs(pieces: list[str]) -> Iterator[tuple[str, int]]:
    """Each run of several pieces as an entry, and how many pieces it saves."""
    for start in range(len(pieces) - 1):
        entry = pieces[start]
        for end in range(start + 1, min(len(pieces), start + _LONGEST_RUN)):
            entry += pieces[end].removeprefix("##")
            yield entry, end - start
