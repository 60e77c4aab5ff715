"""Held-out results of pretraining as text, beside their baselines."""

from collections.abc import Sequence

from .engine.progress import clock
from .objective import Row

FORMS = {"nats": "{:.3f}", "share": "{:.1%}", "count": "{:,.0f}"}


def results_table(rows: Sequence[Row], results: dict) -> str:
    """The held-out results of a finished run beside their baselines, as text.

    Args:
        results: content of results.json.
    """
    lines = [f"{'held-out text':<22}{'this model':>12}   baseline"]
    for row in rows:
        form = FORMS[row.unit]
        baseline = "" if row.baseline is None else f"{form.format(row.baseline)}  {row.of}"
        lines.append(f"{row.name:<22}{form.format(row.value):>12}   {baseline}")
    lines.append(f"{results['steps']:,} steps, {results['tokens']:,} tokens in {clock(results['seconds'])}")
    return "\n".join(lines)
