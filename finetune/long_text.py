"""What a model reads of a text that is longer than it can read."""

from typing import Literal, NamedTuple

LongText = Literal["head", "head-tail", "windows"]

# Share of the tokens that head-tail takes from the beginning (128 of 510 in Sun et al. 2019, section 5.3.1), and share
# of a window that the next one repeats.
HEAD_SHARE, OVERLAP = 0.25, 0.25


class Span(NamedTuple):
    """Tokens `start` to `start + length` of a segment."""

    start: int
    length: int


def fitted(first: int, second: int, capacity: int) -> tuple[int, int]:
    """Lengths of two segments after tokens are taken off the longer one until both fit together.

    The same numbers as `truncation="longest_first"` of `tokenizers`.
    """
    if first + second <= capacity:
        return first, second
    shorter = min(first, second)
    shorter = min(shorter, capacity // 2)
    longer = capacity - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def head_tail(length: int, capacity: int) -> list[Span]:
    """The beginning and the end of a segment, `capacity` tokens together; all of it where it fits."""
    if length <= capacity:
        return [Span(0, length)]
    head = int(capacity * HEAD_SHARE)
    return [Span(0, head), Span(length - (capacity - head), capacity - head)]


def windows(length: int, capacity: int) -> list[Span]:
    """Overlapping windows that cover a segment; the last one ends with it."""
    if length <= capacity:
        return [Span(0, length)]
    stride = max(1, capacity - int(capacity * OVERLAP))
    starts = [*range(0, length - capacity, stride), length - capacity]
    return [Span(start, capacity) for start in starts]
