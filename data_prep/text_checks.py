"""What a text holds that a model should not learn from: counted while it is read, said in the report."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from .text.cells import JOINERS
from .text.wrapping import UNSPACED
from .vocabulary.wordpiece import LONGEST_WORD, SPECIAL_TOKENS, bert_normalizer

# As UTF-8: the control characters (the tokenizer drops them), and the character that stands for what could not be read.
_CONTROL = bytes([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])
_LATIN_CONTROL = re.compile(rb"\xc2[\x80-\x9f]")
_REPLACEMENT = "\ufffd".encode()
# What a byte of UTF-8 text becomes when it is read as Latin-1 or as cp1252, and saved again: Ã©, â€™.
_READ_TWICE = ("Ã".encode() + b"\xc2", "â€".encode())
_TAG = re.compile(rb"</[a-zA-Z][a-zA-Z0-9]{0,15}\s{0,9}>|<br\s{0,9}/?>", re.IGNORECASE)
# Not split by the tokenizer (Chinese and Japanese are). Few words have this many letters.
_WITHOUT_SPACES = re.compile(f"[{UNSPACED}]{{20,}}")
# Dropped by the tokenizer. In Persian and many Indian scripts they decide how two letters are written.
_JOINERS = tuple(joiner.encode() for joiner in JOINERS)
# The letters ı and İ of Turkish and Azeri, whose I and i are no pair.
_TURKISH = ("ı".encode(), "İ".encode())
# Of private use, as UTF-8: letters and bullets that one font alone can show.
_PRIVATE = re.compile(
    rb"\xee[\x80-\xbf]{2}|\xef[\x80-\xa3][\x80-\xbf]|\xf3[\xb0-\xbf][\x80-\xbf]{2}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_PRIVATE_LEADS = (b"\xee", b"\xef", b"\xf3", b"\xf4")
# Characters of ASCII without a space, and letters and digits in them without a mark between. Few words of a language
# are so long; base64, hashes and sequences are.
LONG_RUN = 40
# Chinese characters and marks of ASCII: before each of them BERT cuts.
_CUT = "\u4e00-\u9fff!-/:-@"
# A run without a space may be a whole line of Chinese, whose words would take 500 bytes a character. It is looked at in
# pieces of 100,000 characters and more, cut where BERT cuts.
_PIECES = re.compile(f"[\\s\\S]{{100000,}}?(?=[{_CUT}])|[\\s\\S]+")
_LONG_STRETCH = re.compile(rb"[0-9A-Za-z]{20,}")
_LINKS = (b"://", b"www.", b"@")

# Lines are compared between documents at the beginning of a corpus only, which bounds the memory.
_COMPARED_DOCUMENTS, _COMPARED_LINES, _COMPARED_CHARACTERS = 2_000, 200_000, 8_000_000
# Fewer documents share lines by chance.
_LEAST_DOCUMENTS = 10


class TextChecks:
    """Counts over the documents of a corpus.

    Attributes:
        control_characters (below U+0080), latin_controls (U+0080 to U+009F), unreadable_characters (U+FFFD), read_twice
        (places with UTF-8 that was once read as another encoding), special_tokens (the names of special tokens, as
        text), documents_with_tags (HTML, XML), joiners (U+200C, U+200D), turkish_letters (ı, İ), private_characters,
        composed_lines and decomposed_lines (with accents in one character with their letter, or behind it; of the lines
        compared), long_words (of more than `longest_word` characters) and long_word_characters (in them),
        run_characters (letters and digits in stretches of 20 and more in runs of 40 characters and more without a
        space, links and long words left out), bytes (of text).
    """

    def __init__(self, longest_word: int = LONGEST_WORD):
        self.longest_word = longest_word
        self.documents = 0
        self.control_characters = self.latin_controls = self.unreadable_characters = self.read_twice = 0
        self.special_tokens = self.documents_with_tags = 0
        self.joiners = self.turkish_letters = self.private_characters = 0
        self.composed_lines = self.decomposed_lines = 0
        self.long_words = self.long_word_characters = self.run_characters = self.bytes = 0
        self._long_word_bytes = 0
        self._compared = self._characters = self._without_spaces = 0
        self._documents_of_line: Counter[str] = Counter()
        self._times_of_line: Counter[str] = Counter()

    def add(self, lines: list[str], text: bytes) -> None:
        """Count a document, given by its lines and by the same lines as UTF-8."""
        self.documents += 1
        self.control_characters += len(text) - len(text.translate(None, _CONTROL))
        self.latin_controls += len(_LATIN_CONTROL.findall(text))
        self.unreadable_characters += text.count(_REPLACEMENT)
        self.read_twice += sum(map(text.count, _READ_TWICE))
        if b"[" in text:
            self.special_tokens += sum(text.count(token.encode()) for token in SPECIAL_TOKENS)
        self.documents_with_tags += b"<" in text and _TAG.search(text) is not None
        self.joiners += sum(map(text.count, _JOINERS))
        self.turkish_letters += sum(map(text.count, _TURKISH))
        if any(lead in text for lead in _PRIVATE_LEADS):
            self.private_characters += len(_PRIVATE.findall(text))
        self._add_runs(text)
        if self._compared < _COMPARED_DOCUMENTS and self._characters < _COMPARED_CHARACTERS:
            self._compare(lines)

    def _add_runs(self, text: bytes) -> None:
        self.bytes += len(text)
        for start, end in runs_without_space(text, min(LONG_RUN, self.longest_word + 1)):
            run = text[start:end]
            if found := _long_words_of(run, self.longest_word):
                self.long_words += len(found)
                self.long_word_characters += sum(map(len, found))
                self._long_word_bytes += sum(len(word.encode()) for word in found)
            elif len(run) >= LONG_RUN and run.isascii() and not any(mark in run for mark in _LINKS):
                self.run_characters += sum(map(len, _LONG_STRETCH.findall(run)))

    def _compare(self, lines: list[str]) -> None:
        self._compared += 1
        self._characters += sum(map(len, lines))
        self._without_spaces += sum(len(run) for line in lines for run in _WITHOUT_SPACES.findall(line))
        others = [line for line in lines if not line.isascii()]
        self.composed_lines += sum(not unicodedata.is_normalized("NFD", line) for line in others)
        self.decomposed_lines += sum(len(unicodedata.normalize("NFC", line)) < len(line) for line in others)
        known = self._documents_of_line
        lines = [line for line in lines if line in known or len(known) < _COMPARED_LINES]
        self._times_of_line.update(lines)
        known.update(set(lines))

    def repeated_lines(self) -> list[tuple[str, int]]:
        """Lines that stand in more than half of the documents compared, and in how many; the most frequent first."""
        if self._compared < _LEAST_DOCUMENTS:
            return []
        found = [item for item in self._documents_of_line.items() if item[1] > self._compared / 2]
        return sorted(found, key=lambda item: (-item[1], item[0]))

    def numbers(self) -> dict:
        """Everything counted, for the report; no text is in it."""
        repeated = [line for line, _ in self.repeated_lines()]
        in_repeated = sum(len(line) * self._times_of_line[line] for line in repeated)
        return {
            "documents": self.documents,
            "control_characters": self.control_characters + self.latin_controls,
            "latin_controls": self.latin_controls,
            "unreadable_characters": self.unreadable_characters,
            "read_twice": self.read_twice,
            "special_tokens_as_text": self.special_tokens,
            "documents_with_tags": self.documents_with_tags,
            "bytes": self.bytes,
            "joiners": self.joiners,
            "turkish_letters": self.turkish_letters,
            "private_characters": self.private_characters,
            "composed_lines": self.composed_lines,
            "decomposed_lines": self.decomposed_lines,
            "longest_word": self.longest_word,
            "long_words": self.long_words,
            "long_word_characters": self.long_word_characters,
            "share_of_long_words": self._long_word_bytes / max(1, self.bytes),
            "share_of_long_runs": self.run_characters / max(1, self.bytes),
            "repeated_lines": len(repeated),
            "share_of_repeated_lines": in_repeated / max(1, self._characters),
            "share_without_spaces": self._without_spaces / max(1, self._characters),
        }


def runs_without_space(text: bytes, least: int) -> list[tuple[int, int]]:
    """Begin and end of each run of `least` bytes or more without white space (of ASCII) in UTF-8 text."""
    spaces = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) <= ord(" "))
    bounds = np.concatenate([[-1], spaces, [len(text)]])
    long = np.flatnonzero(np.diff(bounds) > least)
    return list(zip((bounds[long] + 1).tolist(), bounds[long + 1].tolist(), strict=True))


def _words_of(run: str) -> Iterator[str]:
    """The words that BERT sees in a run, which it cuts at punctuation and around Chinese characters."""
    for piece in _PIECES.finditer(run):
        for word, _ in _cutter().pre_tokenize_str(_cleaner().normalize_str(piece[0])):
            yield word


def long_words(text: bytes, longest_word: int = LONGEST_WORD) -> list[str]:
    """Words that no vocabulary can hold (sequences, base64, lines without a space) in UTF-8 text: those of more than
    this many characters, each of which becomes one [UNK]."""
    # A character has a byte at least.
    runs = runs_without_space(text, longest_word + 1)
    return [word for start, end in runs for word in _long_words_of(text[start:end], longest_word)]


def _long_words_of(run: bytes, longest_word: int) -> list[str]:
    if len(run) <= longest_word:
        return []
    told = run.decode("utf-8", "replace")
    if not _uncut(longest_word + 1).search(told):
        return []
    return [word for word in _words_of(told) if len(word) > longest_word]


@cache
def _uncut(least: int) -> re.Pattern:
    """Matches `least` characters without a place at which BERT surely cuts. A run without a match has no word that is
    as long, and need not be cut into words, which is slow."""
    return re.compile(f"[^{_CUT}]{{{least}}}")


@cache
def _cleaner() -> normalizers.Normalizer:
    return bert_normalizer(lowercase=False, strip_accents=False)


@cache
def _cutter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.BertPreTokenizer()
