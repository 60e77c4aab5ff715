"""In which encoding a text is, by its bytes."""

import codecs
import re
from collections.abc import Callable, Iterator

AUTO = "auto"
LEAST_CONFIDENCE = 0.1
"""Of chardet, 0 to 1; below, the encoding is taken to be unknown.

Of the translations of Django 5.2 in 35 languages, in Windows' pages and those of East Asia, 1 % of texts of 5 to 100
lines are read in a wrong encoding, and 1 % are unknown (of one or two lines 5 and 7 %); in ISO's and Mac's pages 2 and
2 % (10 and 10 %).
"""
# Below, what reads as text of Western Europe is taken for that.
_SURE = 0.15

_SAMPLE_BYTES = 1 << 16
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks, and of which encoding they are; that of UTF-16 begins that of UTF-32."""
# From the first byte beyond ASCII to the last, and one more, which may be the second half of a character.
_BEYOND_ASCII = re.compile(rb"[\x80-\xff](?:.*[\x80-\xff])?.?", re.DOTALL)
_LETTER, _LETTER_BEYOND_ASCII = re.compile(rb"[A-Za-z\x8c\x9c\xc0-\xff]"), re.compile(rb"[\x8c\x9c\xc0-\xff]")
# Letters and marks of cp1252 in text of Western Europe; but for these, no mark stands between two letters. Some never
# stand behind a letter, some not before a small one.
_WESTERN_LETTERS = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŸ"
_MARKS_OF_WORDS, _WESTERN_MARKS = "’‘´·–—", "€‚„…†‰‹“”•™›¡¢£§©ª«®°±²³µ¹º»¼½¾¿×÷\xa0"
_NOT_WESTERN = re.compile(
    f"[^\0-\x7f{_WESTERN_LETTERS}{_MARKS_OF_WORDS}{_WESTERN_MARKS}]|[^\\W\\d_][{_WESTERN_MARKS}](?=[^\\W\\d_])"
    "|[^\\W\\d_][¡¿¢£¼½¾±¶]|[^\\W\\d_]{3}³|[¹²³](?=[a-zß-öø-ÿ])"
)
# Of the letters of French, Swedish or Finnish some 5 % are beyond ASCII, of those of Hungarian 12 %.
_WESTERN_SHARE = 0.1
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_OTHER = re.compile("[^\0-\x7f\udc80-\udcff]")


def marked_encoding(start: bytes) -> str | None:
    """What the byte order mark at the start of a text says, None without one (and for that of UTF-8)."""
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), None)


def found_encoding(chunks: Callable[[], Iterator[bytes]]) -> tuple[str, float]:
    """The encoding of a text and how sure it is, 0 to 1.

    What is valid UTF-8 is UTF-8, and what is so but for a few bytes; else chardet looks at up to 64 kB of lines with
    letters beyond ASCII, wherever they are. Where it is not sure, text that reads as one of Western Europe is cp1252,
    as office programs export it. ISO 8859-1 is read as cp1252, which contains it; likewise other such pairs of pages.

    Args:
        chunks: reads the text from its beginning; called once, or up to three times for what is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for number, chunk in enumerate(chunks()):
            if number == 0 and (marked := marked_encoding(chunk)):
                return marked, 1.0
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        sample = _sample(chunks())
        found = _detected(sample)
        if found[1] < _SURE and _is_western(sample, next(chunks())):
            return "cp1252", LEAST_CONFIDENCE
        return found
    return "utf-8", 1.0


def _detected(sample: bytes) -> tuple[str, float]:
    from chardet import EncodingEra, detect

    eras = EncodingEra.MODERN_WEB | EncodingEra.LEGACY_ISO | EncodingEra.LEGACY_MAC
    text = sample.decode("utf-8", "surrogateescape")
    if len(_OTHER.findall(text)) > len(_NOT_UTF8.findall(text)):
        return "utf-8", 1.0
    found, wider = (
        detect(sample, encoding_era=eras, prefer_superset=superset, compat_names=False) for superset in (False, True)
    )
    names = [found["encoding"] or "cp1252", wider["encoding"] or "cp1252"]
    # Of chardet's supersets some have other letters in places: cp1250 is none of ISO 8859-2.
    is_same = sample.decode(names[0], "replace") == sample.decode(names[1], "replace")
    return names[is_same].lower(), found["confidence"]


def _is_western(sample: bytes, start: bytes) -> bool:
    """Whether a text in cp1252 has few letters beyond ASCII, all of Western Europe, and marks where marks stand.

    Read as cp1252, Polish has marks within words, Czech other letters, and Cyrillic too many letters beyond ASCII.
    """
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    letters, beyond = (len(pattern.findall(start)) for pattern in (_LETTER, _LETTER_BEYOND_ASCII))
    return beyond <= _WESTERN_SHARE * letters and not _NOT_WESTERN.search(text)


def _sample(chunks: Iterator[bytes]) -> bytes:
    """The first lines with bytes beyond ASCII, of each the part with them. All encodings but UTF-16 and UTF-32 have
    the same line feed."""
    sample = b""
    for line in _lines(chunks):
        if not line.isascii():
            # Behind a character that is cut at the end there may be nothing.
            sample += b"\n" + _BEYOND_ASCII.search(line)[0][:_SAMPLE_BYTES]
            if len(sample) >= _SAMPLE_BYTES:
                break
    return sample


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of a text; long ones in pieces that end with a space, which is no part of another character."""
    tail = b""
    for chunk in chunks:
        *lines, tail = (tail + chunk).split(b"\n")
        yield from lines
        if len(tail) >= _SAMPLE_BYTES:
            end = tail.rfind(b" ") + 1 or len(tail)
            yield tail[:end]
            tail = tail[end:]
    yield tail
