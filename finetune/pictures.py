"""Pictures of results: the confusions of classes, and predicted over gold numbers."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.durable import replaced

from .names import display_width, one_line, short_names

# In points; a smaller count in the picture cannot be read.
_SMALLEST_LETTERS = 4
# Of names, which may be read at a larger scale.
_SMALLEST_NAMES = 3
# Fonts with the scripts of Asia and Africa, for the letters that matplotlib's own font lacks; those installed are used.
_OF_NOTO = ("CJK KR", "CJK JP", "Thai", "Lao", "Khmer", "Myanmar", "Devanagari", "Bengali", "Tamil", "Ethiopic")
_MORE_FONTS = (
    *(f"Noto Sans {script}" for script in _OF_NOTO), "NanumGothic", "Malgun Gothic", "Leelawadee UI", "Nirmala UI",
    "Apple SD Gothic Neo", "Thonburi", "Kohinoor Devanagari",
)  # fmt: skip


def draw_confusion(matrix: np.ndarray, labels: Sequence[str], path: Path, title: str) -> None:
    """Draw the confusions [C, C] as PNG: colour is the share of the gold class; the picture is replaced as a whole.

    Counts stand in the cells where they fit (always up to 50 classes and counts below 100,000); none stands for 0.
    Names of more classes than can be read are left out.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    fonts = [*matplotlib.rcParams["font.family"], *(name for name in _MORE_FONTS if name in installed)]
    side = min(14.0, max(3.0, 0.6 * len(labels)))
    cell = 72 * side / len(labels)
    size = min(9.0, 0.7 * cell)
    names = short_names(labels, 24) if size >= _SMALLEST_NAMES else []
    longest = 0.6 * size * max(map(display_width, names), default=0)
    figure = Figure(figsize=(side + longest / 72 + 1.6, side + longest / 72 + 1), layout="compressed")
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from|Matplotlib currently does not support")
        axes = figure.subplots()
        _draw_cells(figure, axes, matrix, cell, size)
        # A dollar sign in a name or in the title is no formula.
        plain = {"parse_math": False, "fontsize": size}
        axes.set_xticks(range(len(names)), names, rotation=0 if longest < 0.9 * cell else 90, **plain)
        axes.set_yticks(range(len(names)), names, **plain)
        axes.set_title(one_line(title), parse_math=False, fontsize=11)
        axes.set(xlabel="predicted", ylabel="gold")
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", dpi=110)


def _draw_cells(figure, axes, matrix: np.ndarray, cell: float, size: float) -> None:
    """Colours, the bar that explains them, and the counts that fit; `cell` and the letters' `size` are in points."""
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the gold class", aspect=30)
    for gold, predicted in np.argwhere(matrix):
        count = str(matrix[gold, predicted])
        fitting = min(size, 0.9 * cell / (0.6 * len(count)))
        if fitting >= _SMALLEST_LETTERS:
            colour = "white" if shares[gold, predicted] > 0.5 else "black"
            axes.text(predicted, gold, count, ha="center", va="center", color=colour, fontsize=fitting)


def draw_numbers(gold: np.ndarray, predicted: np.ndarray, path: Path, title: str) -> None:
    """Draw predicted over gold numbers as PNG; the picture is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    ends = [min(gold.min(), predicted.min()), max(gold.max(), predicted.max())]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.scatter(gold, predicted, s=9, alpha=0.5)
    axes.set(xlabel="gold", ylabel="predicted")
    axes.set_title(one_line(title), parse_math=False, fontsize=11)
    axes.grid(alpha=0.3)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
