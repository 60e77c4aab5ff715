"""What a person at the screen sees."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

from ..start import as_typed

_LONGEST_EXAMPLE = 400
_reader_may_end = False


@contextmanager
def without_reader() -> Iterator[None]:
    """In the block, the end of whoever reads the output (head, a pager) ends nothing: long work goes on without."""
    global _reader_may_end
    before, _reader_may_end = _reader_may_end, True
    try:
        yield
    finally:
        _reader_may_end = before


@contextmanager
def heard_or_not() -> Iterator[None]:
    """What cannot be printed in the block ends nothing: where a terminal is gone or the disk of a log is full, all that
    is printed later goes nowhere. The end of the reader ends a command, but for `without_reader`."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE and not _reader_may_end:
            raise
        for stream in (sys.stdout, sys.stderr):
            _silence(stream)


def _silence(stream: Any) -> None:
    """Point a stream to nowhere if it cannot be written to."""
    try:
        stream.flush()
    except OSError:
        # A stream that is no file has no number.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class Bar(tqdm):
    """A progress bar of tqdm, which is not shown where there is no screen any more."""

    # Before tqdm 4.70 a bar that a signal leaves half made lacks the attribute, and __del__ prints a traceback.
    disable = True
    # No thread that looks after slow bars: a signal while it starts leaves a traceback when the process ends.
    monitor_interval = 0

    def display(self, *given: Any, **named: Any) -> Any:
        """See tqdm."""
        with without_reader(), heard_or_not():
            return super().display(*given, **named)

    def close(self) -> None:
        """See tqdm."""
        with without_reader(), heard_or_not():
            super().close()


def say(sentence: str) -> None:
    """Print for a person, at once, with commands as they are typed here."""
    with heard_or_not():
        print(as_typed(sentence), flush=True)


def say_example(number: int, label: str, text: str) -> None:
    """Print a text as a model reads it, cut."""
    shown = text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]} ..."
    say(f"\nExample {number} ({label}): {shown}")


def say_plan(rows: Mapping[str, str]) -> None:
    """Print the plan of a dry run, a name and what is said of it a line."""
    say("\nThe plan (nothing was kept):")
    for name, value in rows.items():
        say(f"  {name:<24}{value}")
