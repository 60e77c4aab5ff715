"""What a person and a program see of a run while it goes on: one progress bar, and metrics.jsonl."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_prep.console.screen import Bar, heard_or_not, say
from data_prep.durable import flush_to_disk, write_text

from .counters import Counters, Outcome

# Without a terminal a line is printed at least this often (share of the budget).
_LINES = 20


class MetricsFile:
    """metrics.jsonl: a row every few steps, a row an evaluation, a row for a loss that stands out.

    Args:
        num_bytes: how much of the file found is kept; rows written after the checkpoint a run goes on from are not.
            Rows in it that are damaged are left out, and that is said.
        ended_at: the step at which a run ended that has a larger budget now: its last evaluation, which came behind its
            last checkpoint, is kept.
    """

    def __init__(self, path: Path, num_bytes: int = 0, ended_at: int | None = None):
        self.path = path
        found = path.read_bytes() if path.exists() else b""
        rows = [line for line in found[:num_bytes].splitlines(keepends=True) if _row(line) is not None]
        if sum(map(len, rows)) < num_bytes:
            say(f"{path} is not as it was when the checkpoint was written: rows are missing.")
        behind = found[num_bytes:].splitlines(keepends=True)
        row = _row(behind[0]) if behind else None
        if row and "validation" in row and row["step"] == ended_at:
            rows.append(behind[0])
        kept = b"".join(rows)
        if not found.startswith(kept):
            write_text(path, kept.decode())
        with open(path, "ab") as file:
            file.truncate(len(kept))

    def write(self, row: dict[str, Any]) -> None:
        """Append a row."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def flush(self) -> int:
        """Wait until all rows are on disk; returns the size of the file."""
        flush_to_disk(self.path)
        return self.path.stat().st_size

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


def _row(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None if it is damaged."""
    try:
        row = json.loads(line.decode())
    except ValueError:
        return None
    return row if line.endswith(b"\n") and isinstance(row, dict) else None


class Progress:
    """Shows and records a run.

    Args:
        metrics: where rows go.
        log_every: steps between rows.
        summary: held-out results in a line.
        after_evaluation: called with all rows after each evaluation (draws the curves).
        weights: factors of losses, by name, which what is shown and recorded is without.
    """

    def __init__(
        self,
        metrics: MetricsFile,
        log_every: int,
        summary: Callable[[dict[str, float]], str],
        after_evaluation: Callable[[list[dict[str, Any]]], None],
        weights: Mapping[str, float] | None = None,
    ):
        self.metrics, self.log_every, self.weights = metrics, log_every, weights or {}
        self.summary, self.after_evaluation = summary, after_evaluation
        self._bar: Bar | None = None
        self.notes: dict[str, Any] = {}
        """What rows of evaluations say besides."""
        self._began: tuple[int, float, float] | None = None
        self._since: tuple[int, float, float] | None = None
        self._printed = -1

    def begin(self, tokens: int, seconds: float, used: float) -> None:
        """Take note of where this process begins to train."""
        self._began = self._began or (tokens, seconds, used)

    def step(self, counters: Counters, outcome: Outcome, seconds: float, used: float) -> None:
        """Record a step; `seconds` and `used` are the time and the share of the budget used.

        Losses that are not finite have no mean; the row counts the steps that were skipped for them. Nor has a loss for
        which no step had a target.
        """
        losses, norm = outcome.losses, outcome.norm
        if all(map(math.isfinite, losses.values())):
            for name, value in losses.items():
                total, steps = counters.losses.get(name, (0.0, 0))
                counters.losses[name] = [total + value, steps + 1]
        speed, left = self._pace(outcome.tokens, seconds, used)
        if outcome.step % self.log_every == 0:
            means = self._unweighted({name: total / steps for name, (total, steps) in counters.losses.items()})
            row: dict[str, Any] = {"step": outcome.step, "epoch": outcome.epochs, "tokens": outcome.tokens, **means}
            row |= {"learning_rate": outcome.learning_rate, "grad_norm": norm if math.isfinite(norm) else None}
            row |= {"skipped": counters.skipped, "overflows": counters.overflows}
            row |= {"seconds": round(seconds, 3), "tokens_per_second": round(speed), "threads": outcome.threads}
            self.metrics.write(row)
            counters.losses = {}
            self._show(row, used, left)

    def _unweighted(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Losses without their weights; not those whose weight is 0, of which nothing is left."""
        weights = {name: self.weights.get(name, 1.0) for name in losses}
        return {f"{name}_loss": loss / weights[name] for name, loss in losses.items() if weights[name]}

    def _pace(self, tokens: int, seconds: float, used: float) -> tuple[float, float]:
        """Tokens a second since this process began to train, and the seconds until the budget is used at that pace.

        A run may have been stopped, or have begun on another machine: what went before says nothing about the rest.
        The first step, which warms up, counts where there is no other.
        """
        now = (tokens, seconds, used)
        trained, took, share = (a - b for a, b in zip(now, self._since or self._began or (0, 0.0, 0.0), strict=True))
        self._since = self._since or now
        return trained / max(took, 1e-9), took * (1 - used) / max(share, 1e-9)

    def _show(self, row: dict[str, Any], used: float, left: float) -> None:
        losses = "  ".join(f"{name[:-5]} {row[name]:.3f}" for name in row if name.endswith("_loss"))
        line = f"step {row['step']:,}  {losses}  lr {row['learning_rate']:.1e}  "
        line += f"{row['tokens_per_second']:,} tokens/s  {clock(left)} left"
        if self._bar is None:
            self._bar = Bar(total=1.0, disable=None, bar_format="{percentage:3.0f}%|{bar:24}| {desc}")
        self._bar.n = used
        self._bar.set_description_str(line)
        if self._bar.disable and int(used * _LINES) > self._printed:
            self._printed = int(used * _LINES)
            say(f"{used:4.0%}  {line}")

    def spike(self, counters: Counters, outcome: Outcome) -> None:
        """Record a loss far above the usual, or not finite, and where the step's examples are."""
        usual, losses = counters.usual_loss.mean, outcome.losses
        loss = sum(losses.values())
        numbers = self._unweighted(losses) | {"loss": loss}
        row = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self.metrics.write({"step": outcome.step, "spike": row, "usual_loss": usual, "examples": outcome.identify()})
        text = f"step {outcome.step:,}: the loss is {loss:.3f}, usual is {usual:.3f}"
        self._tell(f"{text}; {self.metrics.path} names the examples")

    def evaluation(self, counters: Counters, results: dict[str, float]) -> None:
        """Record held-out results and say them in a line."""
        row = {"step": counters.step, "tokens": counters.tokens, **self.notes, "validation": results}
        self.metrics.write(row)
        self._tell(f"step {counters.step:,}: {self.summary(results)}")
        self.after_evaluation(self.metrics.rows())

    def _tell(self, sentence: str) -> None:
        """Print a line above the bar."""
        with heard_or_not():
            Bar.write(sentence, file=sys.stdout)
            sys.stdout.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Silence:
    """The progress of a process that is not the main one: nothing is shown or written."""

    notes: Mapping[str, Any] = {}

    def begin(self, *facts: object) -> None: ...

    def step(self, *facts: object) -> None: ...

    def spike(self, *facts: object) -> None: ...

    def evaluation(self, *facts: object) -> None: ...

    def close(self) -> None: ...


def clock(seconds: float) -> str:
    """Seconds as a person reads them: 45 s, 3 min 05 s, 2 h 10 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
