"""curves.png: training and held-out loss, held-out accuracy, and their baselines, over the tokens seen."""

from itertools import cycle
from pathlib import Path

from data_prep.durable import replaced

from .objective import PretrainingObjective

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
# Of a point that belongs to no line.
_ALONE = {"marker": "D", "linestyle": "", "markerfacecolor": "none"}


def draw_curves(rows: list[dict], objective: PretrainingObjective, path: Path) -> None:
    """Draw the rows of metrics.jsonl; the picture is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    training = [row for row in rows if "learning_rate" in row]
    held_out = [(row["tokens"], row["validation"]) for row in rows if "validation" in row]
    if not held_out:
        return
    # The last evaluation takes more examples than those before, and is no point of their line.
    text = objective.baselines(held_out[0][1])
    during = [row for row in held_out if objective.baselines(row[1]) == text]
    final = [row for row in held_out if objective.baselines(row[1]) != text]
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy = figure.subplots(1, 2)
    last = held_out[-1][1]
    for part, colour in zip(objective.parts, cycle(_COLOURS)):
        name, label = part.name, part.name.upper()
        if f"{name}_loss" not in last:
            continue
        steps = [row["tokens"] for row in training]
        loss.plot(steps, [row.get(f"{name}_loss") for row in training], color=colour, alpha=0.3, lw=1)
        for axes, measure, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
            for some, more, style in ((during, "", {"marker": "o", "ms": 3}), (final, ", more text", _ALONE)):
                values = [scale * found[f"{name}_{measure}"] for _, found in some]
                if some:
                    axes.plot([tokens for tokens, _ in some], values, color=colour, label=label + more, **style)
            if baseline := part.baselines.get(measure):
                level = scale * last[baseline]
                axes.axhline(level, color=colour, linestyle=":", label=baseline.replace("_", " "))
    for axes, title in ((loss, "loss (nats; pale: training)"), (accuracy, "held-out accuracy (%)")):
        axes.set(title=title, xlabel="tokens seen")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
