"""Bytes on disk into text and lines: decompressed, decoded, every line break as one line feed."""

import codecs
import difflib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from encodings.aliases import aliases
from functools import cache, partial
from itertools import chain

from ..errors import PrepError, ReadingFailed
from .cells import whole_characters
from .encodings import AUTO, LEAST_CONFIDENCE, MARKS, found_encoding, marked_encoding
from .sources import Source

_CHUNK = 1 << 20
# Whoever stops in a text knows how far it has read.
_SMALL_CHUNK = 1 << 16
_BINARY_CHECK = 1 << 16
# They spell half of a surrogate pair, too.
_WITH_HALVES = ("utf-7", "unicode-escape", "raw-unicode-escape")
# What Windows calls encodings where it saves a file.
_OF_WINDOWS = {"ansi": "cp1252", "unicode": "utf-16"}


@dataclass(slots=True)
class Meter:
    """Bytes on disk that one pass has used up: of the sources behind it, and of the one it is in."""

    finished: int = 0
    position: int = 0

    def finish(self, source: Source) -> None:
        """The pass has reached the end of a source."""
        self.finished, self.position = self.finished + source.size, 0


def check_encoding(encoding: str) -> None:
    """Raises PrepError with the nearest names where Python has no text encoding of this name; "auto" is one."""
    if encoding == AUTO:
        return
    if not _is_text_encoding(encoding):
        asked = encoding.lower().replace("_", "-")
        known = sorted({name.replace("_", "-") for name in chain(aliases, aliases.values()) if _is_text_encoding(name)})
        near = [_OF_WINDOWS[asked]] if asked in _OF_WINDOWS else difflib.get_close_matches(asked, known, n=3)
        near = " or ".join(near or ["utf-8", "cp1252"])
        raise PrepError(f'"{encoding}" is not a text encoding; pass --encoding {near}')


def _is_text_encoding(name: str) -> bool:
    try:
        "".encode(name)
        # The one of internet names takes no errors.
        b" ".decode(name, "replace")
        codecs.getincrementaldecoder(name)
    except (LookupError, UnicodeError):
        return False
    return True


def check_unchanged(source: Source, found: os.stat_result) -> None:
    """Raises PrepError where a file is no longer as it was when it was first seen.

    A corpus is read several times, and every time has to see the same.
    """
    if source.written is not None and (found.st_size, found.st_mtime_ns) != (source.size, source.written):
        raise PrepError(
            f"{source.shown} has changed since it was first read: give the same command again when nothing writes to it"
        )


def byte_chunks(source: Source, meter: Meter, decompress: bool = True, size: int = _CHUNK) -> Iterator[bytes]:
    """The file's bytes, a megabyte or `size` at a time."""
    try:
        with open(source.path, "rb") as raw:
            check_unchanged(source, os.fstat(raw.fileno()))
            stream = gzip.GzipFile(fileobj=raw) if source.compressed and decompress else raw
            # read1 hands over what is there, so that a pipe is read as it is written.
            while chunk := stream.read1(size):
                if raw.seekable():
                    meter.position = raw.tell()
                check_unchanged(source, os.fstat(raw.fileno()))
                yield chunk
            # A file that was cut short ends early.
            check_unchanged(source, os.fstat(raw.fileno()))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PrepError(f"{source.shown} is cut off or damaged ({error}); copy it or compress it again") from None
    except OSError as error:
        raise ReadingFailed(f"{source.shown} cannot be read ({error.strerror}); check its permissions") from None


@cache
def encoding_of(source: Source, encoding: str) -> str:
    """The encoding itself, or for "auto" the one that the file is in.

    Raises:
        PrepError: the file can be read but once, or does not show its encoding.
    """
    if encoding != AUTO:
        return encoding
    if source.written is None:
        raise PrepError(
            f"{source.shown} can be read only once, and --encoding auto reads twice: name its encoding, or leave "
            "--encoding out for UTF-8"
        )
    found, confidence = found_encoding(partial(byte_chunks, source, Meter()))
    if confidence < LEAST_CONFIDENCE:
        raise PrepError(
            f"{source.shown} is not UTF-8, and holds too little beyond ASCII to tell what it is (perhaps {found}): "
            f"convert it (iconv -f {found} -t utf-8 old.txt > new.txt), or leave the file out"
        )
    return found


def text_blocks(source: Source, encoding: str, meter: Meter) -> Iterator[str]:
    """The file's text in pieces, without a byte order mark, every line break as one line feed."""
    asked, encoding = encoding, encoding_of(source, encoding)
    decoder = codecs.getincrementaldecoder(encoding)()
    # Python's own translation of CR LF and CR, which also sees a pair that lies across two pieces.
    has_halves = codecs.lookup(encoding).name in _WITH_HALVES
    translator = io.IncrementalNewlineDecoder(decoder, translate=True)
    seen, line, first = 0, 1, True
    for chunk in chain(byte_chunks(source, meter, size=_SMALL_CHUNK), [b""]):
        if seen == 0:
            _refuse_binary(source.shown, chunk[:_BINARY_CHECK], encoding)
            _refuse_other_mark(source.shown, chunk, encoding)
        waiting = len(decoder.getstate()[0])
        try:
            text = translator.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = seen - waiting + error.start
            line += error.object[: error.start].decode(encoding, "replace").count("\n")
            remedy = _ENCODING_REMEDY if codecs.lookup(encoding).name == "utf-8" else _OTHER_ENCODING_REMEDY
            if asked == AUTO:
                remedy = "it is of several encodings, or damaged; mend it, or leave it out with --exclude"
            # Punycode may name a place behind the end.
            byte = f" (0x{error.object[error.start]:02x})" if error.start < len(error.object) else ""
            raise PrepError(f"{source.shown}:{line} is not valid {encoding} at byte {place}{byte}: {remedy}") from None
        except UnicodeError as error:
            raise PrepError(f"{source.shown} is not valid {encoding} ({error}); {_OTHER_ENCODING_REMEDY}") from None
        seen += len(chunk)
        line += text.count("\n")
        if has_halves:
            text = whole_characters(text)
        if text:
            yield text.removeprefix("\ufeff") if first else text
            first = False


# One encoding serves all files.
_ENCODING_REMEDY = (
    "convert this file (iconv -f cp1252 -t utf-8 old.txt > new.txt), or pass --encoding with that of all files, such "
    "as cp1252, or auto to find that of each"
)
_OTHER_ENCODING_REMEDY = (
    "it may be UTF-8; convert the files that are not (iconv -f cp1252 -t utf-8 old.txt > new.txt), and leave "
    "--encoding out"
)


def _refuse_binary(name: str, start: bytes, encoding: str) -> None:
    if b"\0" not in start or b"\0" in "a".encode(encoding):
        return
    if found := marked_encoding(start):
        raise PrepError(f"{name} is {found} text, not {encoding}: pass --encoding {found}")
    raise PrepError(
        f"{name} looks like a binary file (a zero byte at {start.index(0)}): "
        "convert it to text, leave it out, or pass --encoding if it is text in utf-16"
    )


def _refuse_other_mark(name: str, start: bytes, encoding: str) -> None:
    """Raises PrepError where text lacks the mark that utf-16 and utf-32 begin with, or has that of another encoding."""
    wanted = codecs.lookup(encoding).name
    # The first bytes may be less than a mark.
    if wanted not in ("utf-16", "utf-32") or any(mark.startswith(start) for mark in MARKS):
        return
    found = marked_encoding(start)
    if found is None:
        raise PrepError(
            f"{name} is not valid {encoding} at byte 0: it does not begin with a byte order mark of that kind; "
            f"pass --encoding {wanted}-le or {wanted}-be, or utf-8"
        )
    if found != wanted:
        raise PrepError(f"{name} is {found} text, not {encoding}: pass --encoding {found}")


def text_lines(source: Source, encoding: str, meter: Meter) -> Iterator[str]:
    """The file's lines without their line breaks, blank ones included."""
    tail: list[str] = []
    for block in text_blocks(source, encoding, meter):
        lines = block.split("\n")
        tail.append(lines[0])
        if len(lines) > 1:
            yield "".join(tail)
            tail = [lines.pop()]
            yield from lines[1:]
    if last := "".join(tail):
        yield last
