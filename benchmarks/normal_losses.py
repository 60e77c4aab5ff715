"""Draws which held-out loss is normal: curves of presets on texts of several lengths, of benchmarks/results.jsonl.

python benchmarks/normal_losses.py --picture docs/images/normal_losses.png
"""

import argparse
import sys
from pathlib import Path

from experiments import NORMAL, SIZES, normal_run
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from published import RESULTS
from published_results import Results

TICKS = (1, 2, 5, 10, 20, 40)
LINES = dict(zip(SIZES, ("-", "--", ":"), strict=True))


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--picture", type=Path, required=True, help="file to write")
    given = made.parse_args()
    draw(Results(RESULTS), given.picture)
    return 0


def draw(results: Results, path: Path) -> None:
    """A curve for each run that was measured: a colour for each text, a kind of line for each preset."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xscale="log", xlabel="tokens read, in millions", ylabel="held-out MLM loss (nats)")
    axes.set_xticks(TICKS, map(str, TICKS))
    for colour, (size, epochs) in enumerate(NORMAL.items()):
        for preset in SIZES:
            if found := results.of(normal_run(size, epochs, preset)):
                read = [tokens / 1e6 for tokens in found["curve"]["tokens"]]
                label = f"{size} MB {epochs} times, {preset}: {found['curve']['mlm_loss'][-1]:.2f}"
                axes.plot(
                    read,
                    found["curve"]["mlm_loss"],
                    LINES[preset],
                    color=f"C{colour}",
                    marker="o",
                    ms=3,
                    lw=1.2,
                    label=label,
                )
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
