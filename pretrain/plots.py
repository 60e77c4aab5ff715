"""curves.png: training and held-out loss, held-out accuracy, and their baselines, over the tokens seen."""

from pathlib import Path

_COLOURS = {"mlm": "tab:blue", "nsp": "tab:orange"}
_LOSS_BASELINES = {"mlm": "unigram_entropy"}
# Of a point that belongs to no line.
_ALONE = {"marker": "D", "linestyle": "", "markerfacecolor": "none"}
_ACCURACY_BASELINES = {"mlm": "most_frequent_accuracy", "nsp": "nsp_majority"}


def draw_curves(rows: list[dict], path: Path) -> None:
    """Draw the rows of metrics.jsonl; the picture is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    training = [row for row in rows if "learning_rate" in row]
    held_out = [(row["tokens"], row["validation"]) for row in rows if "validation" in row]
    if not held_out:
        return
    # The last evaluation takes more examples than those before, and is no point of their line.
    unigram = held_out[0][1]["unigram_entropy"]
    during = [row for row in held_out if row[1]["unigram_entropy"] == unigram]
    final = [row for row in held_out if row[1]["unigram_entropy"] != unigram]
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy = figure.subplots(1, 2)
    last = held_out[-1][1]
    for name in (name for name in _COLOURS if f"{name}_loss" in last):
        colour, label = _COLOURS[name], name.upper()
        steps = [row["tokens"] for row in training]
        loss.plot(steps, [row.get(f"{name}_loss") for row in training], color=colour, alpha=0.3, lw=1)
        for axes, measure, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
            for part, text, style in ((during, "", {"marker": "o", "ms": 3}), (final, ", more text", _ALONE)):
                values = [scale * found[f"{name}_{measure}"] for _, found in part]
                if part:
                    axes.plot([tokens for tokens, _ in part], values, color=colour, label=label + text, **style)
        for axes, baselines, scale in ((loss, _LOSS_BASELINES, 1), (accuracy, _ACCURACY_BASELINES, 100)):
            if name in baselines:
                level = scale * last[baselines[name]]
                axes.axhline(level, color=colour, linestyle=":", label=baselines[name].replace("_", " "))
    for axes, title in ((loss, "loss (nats; pale: training)"), (accuracy, "held-out accuracy (%)")):
        axes.set(title=title, xlabel="tokens seen")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", dpi=110)
    temporary.replace(path)
