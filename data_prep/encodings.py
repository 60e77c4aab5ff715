"""In which encoding a text is, by its bytes."""

import codecs
import re
from collections.abc import Callable, Iterator

AUTO = "auto"
LEAST_CONFIDENCE = 0.1
"""Of chardet, 0 to 1. Of texts of 1 to 20 lines in 24 languages it was right in 99 of 100 cases above, in 95 below."""

_SAMPLE_BYTES = 1 << 16
# The mark of UTF-16 begins that of UTF-32.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# From the first byte beyond ASCII to the last, and one more, which may be the second half of a character.
_BEYOND_ASCII = re.compile(rb"[\x80-\xff](?:.*[\x80-\xff])?.?", re.DOTALL)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_OTHER = re.compile("[^\0-\x7f\udc80-\udcff]")


def marked_encoding(start: bytes) -> str | None:
    """What the byte order mark at the start of a text says, None without one (and for that of UTF-8)."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)


def found_encoding(chunks: Callable[[], Iterator[bytes]]) -> tuple[str, float]:
    """The encoding of a text and how sure it is, 0 to 1.

    What is valid UTF-8 is UTF-8, and what is so but for a few bytes; else chardet looks at up to 64 kB of lines with
    letters beyond ASCII, wherever they are.

    Args:
        chunks: reads the text from its beginning; called once, or twice for what is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for number, chunk in enumerate(chunks()):
            if number == 0 and (marked := marked_encoding(chunk)):
                return marked, 1.0
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return _detected(_sample(chunks()))
    return "utf-8", 1.0


def _detected(sample: bytes) -> tuple[str, float]:
    from chardet import EncodingEra, detect

    text = sample.decode("utf-8", "surrogateescape")
    if len(_OTHER.findall(text)) > len(_NOT_UTF8.findall(text)):
        return "utf-8", 1.0
    found = detect(sample, encoding_era=EncodingEra.MODERN_WEB, prefer_superset=True, compat_names=False)
    return (found["encoding"] or "cp1252").lower(), found["confidence"]


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
