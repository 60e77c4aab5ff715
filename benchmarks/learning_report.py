"""What learning.py shows of its rows: the columns of the table, findings in sentences, and the curves as a picture.

A variant is better if it is so by more than the spread of its paired seeds.
"""

import statistics
from pathlib import Path

# How the names of rows begin.
SEED = ", seed "
DEFAULT, PEER = f"default{SEED}", "transformers "
COLUMNS = {
    "": "run",
    "mlm_loss": "MLM loss",
    "mlm_accuracy": "MLM accuracy (%)",
    "nsp_accuracy": "NSP accuracy (%)",
    "nats_a_character": "nats a character",
    "steps": "steps",
    "tokens": "tokens",
    "seconds": "seconds trained",
    "evaluation_seconds": "in evaluations",
}


def findings(rows: dict[str, dict]) -> list[str]:
    """The noise of the default, transformers beside it, and the distance of every other row from the default."""
    seeds = [row for name, row in rows.items() if name.startswith(DEFAULT)]
    if not seeds:
        return []
    mean = {key: statistics.mean(row[key] for row in seeds) for key in ("mlm_loss", "nats_a_character")}
    noise = f", standard deviation {statistics.stdev(row['mlm_loss'] for row in seeds):.3f}" if seeds[1:] else ""
    lines = [f"- Default: MLM loss {mean['mlm_loss']:.3f}, mean of {len(seeds)}{noise}."]
    peers = [(name.rpartition(SEED)[0], row) for name, row in rows.items() if name.startswith(PEER)]
    for peer in dict.fromkeys(name for name, _ in peers):
        losses = [row["mlm_loss"] for name, row in peers if name == peer]
        spread = f", standard deviation {statistics.stdev(losses):.3f}" if losses[1:] else ""
        ahead = mean["mlm_loss"] - statistics.mean(losses)
        lines.append(f"- {peer}: {statistics.mean(losses):.3f}{spread}; the default minus this: {ahead:+.3f} nats.")
    for variant in dict.fromkeys(name.rpartition(SEED)[0] for name in rows if not name.startswith((DEFAULT, PEER))):
        lines.append(f"- {variant}: {_from_the_default(rows, variant)} from the default.")
    return lines


def _from_the_default(rows: dict[str, dict], variant: str) -> str:
    """The differences of a variant from the default on the same seeds: their mean, and the spread of several."""
    pairs = [
        (row, rows[default])
        for name, row in rows.items()
        if name.startswith(variant + SEED) and (default := DEFAULT + name.rpartition(SEED)[2]) in rows
    ]
    if not pairs:
        return "no run on the same seed"
    units = {"mlm_loss": "nats", "nats_a_character": "nats a character"}
    losses = {key: [row[key] - default[key] for row, default in pairs] for key in units}
    means = ", ".join(f"{statistics.mean(losses[key]):+.4f} {unit}" for key, unit in units.items())
    spread = (
        f" ({len(pairs)} seeds, standard deviation {statistics.stdev(losses['mlm_loss']):.4f})" if pairs[1:] else ""
    )
    return means + spread


def draw(rows: dict[str, dict], path: Path) -> None:
    """Held-out MLM loss over the minutes trained, a line a row, those that differ by their seed alone in one colour;
    transformers dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    groups = list(dict.fromkeys(name.rpartition(SEED)[0] for name in rows))
    for name, row in rows.items():
        group = name.rpartition(SEED)[0]
        minutes = [point["seconds"] / 60 for point in row["curve"]]
        look = {"color": f"C{groups.index(group) % 10}", "linestyle": "--" if name.startswith(PEER) else "-"}
        # A label that begins so is in no legend.
        label = group if name == next(each for each in rows if each.rpartition(SEED)[0] == group) else "_"
        losses = [point["mlm_loss"] for point in row["curve"]]
        axes.plot(minutes, losses, marker="o", ms=3, lw=1.2, label=label, **look)
    level = next(iter(rows.values()))["curve"][-1]["unigram_entropy"]
    axes.axhline(level, color="grey", linestyle=":", label="word frequencies alone")
    axes.set(xlabel="minutes of training", ylabel="held-out MLM loss (nats)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
