"""How far a score may be off because the held-out texts are these and no others: intervals by the bootstrap."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from .rows import Example
from .tasks import Task

# Resamples of few texts, and of many, whose scores differ less.
MOST, FEWEST, _TEXTS = 500, 200, 5_000_000
# So few texts, or groups, say nothing of others.
FEWEST_UNITS = 10
# Texts that are scored at a time, in all resamples together: 160 MB of counts.
_AT_ONCE = 20_000_000
# Of a 95 % interval, in per cent.
_ENDS = (2.5, 97.5)
# The intervals are the same whatever the seeds of the run.
_SEED = 2018
Interval = list[float] | None


def groups_of(examples: Sequence[Example]) -> np.ndarray:
    """The number of each text's group, of a patient say: int64 [n]; a text without one is a group of its own."""
    names = [("", number) if row.group is None else (row.group, 0) for number, row in enumerate(examples)]
    known = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([known[name] for name in names], dtype=np.int64)


class Resamples:
    """Bootstrap resamples: groups drawn with replacement, as many as there are, each with all of its texts (Efron 1979;
    Davison and Hinkley 1997, section 3.8). Iterating gives int64 arrays of text numbers, the same in every pass.

    Args:
        groups: int64 [n], numbered from 0 without gaps.
        count: how many resamples.
    """

    def __init__(self, groups: np.ndarray, count: int):
        self._order, self._count = np.argsort(groups, kind="stable"), count
        self._bounds = np.searchsorted(groups[self._order], np.arange(groups.max(initial=-1) + 2))

    @property
    def num_at_once(self) -> int:
        """How many of them are scored together."""
        return max(1, _AT_ONCE // max(1, len(self._order)))

    def __iter__(self) -> Iterator[np.ndarray]:
        rng, num_groups = np.random.default_rng(_SEED), len(self._bounds) - 1
        if num_groups == len(self._order):
            yield from (self._order[rng.integers(0, num_groups, num_groups)] for _ in range(self._count))
            return
        members = np.split(self._order, self._bounds[1:-1])
        for _ in range(self._count):
            yield np.concatenate([members[group] for group in rng.integers(0, num_groups, num_groups)])


Seeds = Sequence[tuple[Task, np.ndarray]]
"""Of each seed of a model the task with what was decided for it, and its outputs."""


def by_part(
    task: Task, targets: np.ndarray, outputs: np.ndarray, examples: Sequence[Example], others: Seeds = ()
) -> dict[str, dict[str, Any]]:
    """The scores of the texts of each part, the largest part first: value -> {"texts", "scores", "intervals"}.

    Texts without a value are the part "".

    Args:
        outputs: of the seed whose intervals these are.
        others: the other seeds; scores are means over all of them.
    """
    parts: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        parts.setdefault(example.part or "", []).append(number)
    found = {}
    for value, texts in sorted(parts.items(), key=lambda part: (-len(part[1]), part[0])):
        chosen = np.array(texts)
        own = task.drawn(targets, outputs, chosen)
        scores = [task.scores(*own), *(other.scores(*other.drawn(targets, its, chosen)) for other, its in others)]
        means = {name: _mean([each.get(name) for each in scores]) for name in scores[0]}
        rows = [examples[number] for number in texts]
        found[value] = {"texts": len(texts), "scores": means, "intervals": intervals(task, *own, rows)}
    return found


def paired(
    first: Seeds, others: Mapping[str, Seeds], targets: np.ndarray, examples: Sequence[Example]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What a model has over each of others on the same texts, in the mean over the seeds of each: for each score of
    both "difference", the ends of its 95 % "interval", and "p", how often resamples have a difference of the other sign
    or none, doubled (Efron and Tibshirani 1993, section 16.4); the latter two None where `intervals` has none.

    Args:
        others: by name.
    """
    draws = _draws(examples)

    def mean(seeds: Seeds) -> tuple[dict[str, float | None], dict[str, np.ndarray]]:
        whole = [task.scores(targets, outputs) for task, outputs in seeds]
        drawn = [_scores_of_draws(task, outputs, targets, draws) for task, outputs in seeds]
        names = [name for name in whole[0] if all(name in each for each in whole)]
        of_whole = {name: _mean([each[name] for each in whole]) for name in names}
        return of_whole, {name: np.mean([each[name] for each in drawn], axis=0) for name in names if drawn[0]}

    of_first, found = mean(first), {}
    for other, seeds in others.items():
        of_other = mean(seeds)
        found[other] = {
            name: _gap(value, of_other[0][name], of_first[1].get(name), of_other[1].get(name))
            for name, value in of_first[0].items()
            if value is not None and of_other[0].get(name) is not None
        }
    return found


def _gap(first: float, other: float, draws: np.ndarray | None, of_other: np.ndarray | None) -> dict[str, Any]:
    ends = p = None
    if draws is not None and of_other is not None:
        gaps = draws - of_other
        ends = _interval(gaps)
        tail = min(float((gaps <= 0).mean()), float((gaps >= 0).mean()))
        p = None if ends is None else min(1.0, max(2 * tail, 1 / len(gaps)))
    return {"difference": first - other, "interval": ends, "p": p}


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one of them is."""
    return None if None in values else float(np.mean(values))


def intervals(task: Task, targets: np.ndarray, outputs: np.ndarray, examples: Sequence[Example]) -> dict[str, Interval]:
    """For each score the ends of its 95 % interval, by percentiles over resamples of the texts, or of their groups.

    None where there are fewer than 10 of these, where a score is not defined for a resample, and where all resamples
    have the same: that all answers are right, say, tells little of other texts.

    Args:
        targets, outputs: of the items of these texts (see `Task`).
    """
    found = _scores_of_draws(task, outputs, targets, _draws(examples))
    return {name: _interval(found[name]) if found else None for name in task.metrics}


def _draws(examples: Sequence[Example]) -> Resamples:
    """The resamples of texts or groups; none of too few."""
    groups = groups_of(examples)
    enough = groups.max(initial=-1) + 1 >= FEWEST_UNITS
    return Resamples(groups, int(np.clip(_TEXTS // len(examples), FEWEST, MOST)) if enough else 0)


def _scores_of_draws(task: Task, outputs: np.ndarray, targets: np.ndarray, draws: Resamples) -> dict[str, np.ndarray]:
    """`Task.scores_of_draws` in parts, for a flat memory: name -> float64 [B], NaN for what is not defined."""
    parts, left = [], iter(draws)
    while some := list(islice(left, draws.num_at_once)):
        parts.append(task.scores_of_draws(targets, outputs, some))
    names = parts[0] if parts else ()
    return {name: np.concatenate([np.array(part[name], np.float64) for part in parts]) for name in names}


def _interval(values: np.ndarray) -> Interval:
    if np.isnan(values).any() or np.ptp(values) == 0:
        return None
    return np.percentile(values, _ENDS).tolist()
