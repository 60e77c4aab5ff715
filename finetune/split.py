"""Rows that are held back from training: which they are depends on the texts and groups alone."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from .rows import Example

# Times the share that is to be held back: what is too much of groups.
_FAR_MORE = 2.0


def split(
    examples: Sequence[Example],
    share: float,
    purpose: str,
    stratum: Callable[[Example], str],
    by_group: bool = True,
) -> tuple[list[Example], list[Example]]:
    """Hold back a share of each stratum, say a class, by a hash of the content; equal texts stay together, or all texts
    of a group.

    Which rows they are depends on the texts and groups alone: not on their order, nor on a seed. Texts that are equal
    count as one. No stratum is held back whole. A text with more copies, or a group with more rows, than this share of
    its class stays with the rest, where there are others. Texts of several groups can be on both sides. Where groups
    are so large that each class with its own ones would take far more than the share, classes have some in common.

    Args:
        by_group: False splits the texts of groups too.

    Returns:
        (the rest, those held back), both in the order of `examples`.
    """
    contents = [content_hash(example, purpose) for example in examples]
    units = units_of(examples, purpose) if by_group else contents
    rows = Counter(units)
    texts = Counter(unit for unit, _ in set(zip(units, contents, strict=True)))
    classes: dict[bytes, Counter[str]] = {}
    for unit, _, name in sorted(set(zip(units, contents, map(stratum, examples), strict=True))):
        classes.setdefault(unit, Counter())[name] += 1
    held = _of_own_classes(classes, rows, texts, share)
    has_groups = by_group and any(example.group is not None for example in examples)
    if has_groups and sum(texts[unit] for unit in held) > _FAR_MORE * share * texts.total():
        held = min(held, _of_all_classes(classes, share), key=lambda units: (not units, sum(texts[u] for u in units)))
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example, unit in zip(examples, units, strict=True):
        parts[unit in held].append(example)
    return parts


def _of_own_classes(
    classes: Mapping[bytes, Counter[str]], rows: Counter[bytes], texts: Counter[bytes], share: float
) -> set[bytes]:
    """Units to hold back, of each class those that have no rarer one.

    Args:
        classes: of the texts of each unit.
        rows, texts: how many each unit has.
    """
    labels = {unit: sorted(of_unit) for unit, of_unit in classes.items()}
    left = Counter(chain.from_iterable(labels.values()))
    by_class: dict[str, list[bytes]] = {}
    for unit, names in labels.items():
        # What is of several strata belongs to the rarest of them, which has the fewest to choose from.
        by_class.setdefault(min(names, key=lambda name: (left[name], name)), []).append(unit)
    held: set[bytes] = set()
    for _, of_class in sorted(by_class.items()):
        wanted, most = (max(1, round(share * sum(of[unit] for unit in of_class))) for of in (texts, rows))
        has_small = False
        # Of those that are too large the smallest comes first.
        for excess, unit in sorted(((rows[unit] if rows[unit] > most else 0), unit) for unit in of_class):
            if wanted <= 0 or (excess and has_small):
                break
            if all(left[name] > 1 for name in labels[unit]):
                held.add(unit)
                left.subtract(labels[unit])
                wanted -= texts[unit]
                has_small = has_small or not excess
    return held


def _of_all_classes(classes: Mapping[bytes, Counter[str]], share: float) -> set[bytes]:
    """Units to hold back, from the rarest class on: for each what it lacks of the share, until all together have it."""
    of_class: Counter[str] = Counter()
    for of_unit in classes.values():
        of_class.update(of_unit)
    left, most = Counter(chain.from_iterable(classes.values())), share * of_class.total()
    held: set[bytes] = set()
    got: Counter[str] = Counter()
    having: dict[str, list[bytes]] = {}
    # Of those that are too large the smallest comes first.
    for unit in sorted(classes, key=lambda unit: (max(0, classes[unit].total() - most), unit)):
        for name in classes[unit]:
            having.setdefault(name, []).append(unit)
    for name, count in sorted(of_class.items(), key=lambda item: (item[1], item[0])):
        for unit in having[name]:
            if got[name] >= share * count or got.total() >= most:
                break
            if unit not in held and all(left[each] > 1 for each in classes[unit]):
                held.add(unit)
                left.subtract(classes[unit].keys())
                got.update(classes[unit])
    return held


def units_of(examples: Sequence[Example], purpose: str) -> list[bytes]:
    """What cannot be parted: the copies of a text, or all texts of a group."""
    return [
        content_hash(example, purpose) if example.group is None else _hash("group", purpose, example.group)
        for example in examples
    ]


def content_hash(example: Example, purpose: str) -> bytes:
    """Equal for copies of a text, in whatever order its choices stand."""
    return _hash(purpose, example.text, example.text_pair or "", *sorted(example.choices or ()))


def _hash(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
