"""Tables, the picture of the confusions, and the list of mistakes."""

import csv
import re
import struct
import unicodedata
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from finetune.metrics import combined, confusion, per_class
from finetune.mistakes import Mistake, mistakes_markdown, most_confident
from finetune.names import display_width, short_names
from finetune.pictures import draw_confusion
from finetune.report import (
    SHOWN,
    baselines_table,
    confusion_table,
    parts_of_folds_table,
    parts_table,
    per_class_table,
    scores_table,
    write_confusion_csv,
)
from finetune.rows import Example
from pretrain.engine.model_card import _four_digits

pytestmark = pytest.mark.usefixtures("pictures")

MATRIX = np.array([[12, 3, 0], [1, 150, 2], [0, 0, 0]], dtype=np.int64)
HOSTILE = [
    'a, "b"', "line\nbreak", "심장 질환", "= $x_{1$ \\frac", "a|b `c`", " ", "heart " * 30, "heart " * 30 + "x",
]  # fmt: skip


def width(text: str) -> int:
    seen = [c for c in text if c == "\u00ad" or unicodedata.category(c) not in ("Mn", "Me", "Cf")]
    return len(seen) + sum(unicodedata.east_asian_width(c) in "WF" for c in seen)


def random_matrix(size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 6, (size, size)) + np.diag(rng.integers(20, 2000, size))


def test_confusion_table_in_full():
    assert confusion_table(csr_array(MATRIX), ["bad", "good", "unknown"]).split("\n") == [
        "gold \\ predicted  bad  good  unknown  total",
        "bad                12     3        0     15",
        "good                1   150        2    153",
        "unknown             0     0        0      0",
    ]


@given(st.lists(st.text(max_size=40), min_size=2, max_size=12, unique=True), st.integers(0, 9))
@example([f"a very long name of a class {c}" for c in range(12)], 0)
@example([f"{c} a very long name of a class" for c in range(12)], 0)
@example([f"a very long name {c} of a class" for c in range(12)], 0)
@example(["심장과 혈관의 질환", "심장과 혈관의 건강"] + [str(c) for c in range(10)], 0)
@example(["a b", "a\nb"], 0)
def test_confusion_table_is_aligned_and_its_names_differ(labels, seed):
    matrix = random_matrix(len(labels), seed)
    lines = confusion_table(csr_array(matrix), labels).split("\n")
    assert len(lines) == len(labels) + 1
    assert len({width(line) for line in lines}) == 1 and width(lines[0]) <= 160
    for line, row in zip(lines[1:], matrix.tolist(), strict=True):
        assert [int(cell) for cell in line.split()[-len(row) - 1 :]] == [*row, sum(row)]
    names = short_names(labels, 6)
    assert len(set(names)) == len(labels) and max(map(width, names)) <= 6


def test_short_names_keep_what_tells_them_apart():
    assert short_names(["cardiology", "neurology"], 8) == ["cardiol…", "neurolo…"]
    assert short_names(["cardiology", "neurology"], 10) == ["cardiology", "neurology"]
    assert short_names(["cardiology 1", "cardiology 2"], 8) == ["card…y 1", "card…y 2"]
    assert short_names(["cardiology 1 (old)", "cardiology 2 (old)"], 8) == ["0 cardi…", "1 cardi…"]


def test_many_classes_are_told_by_their_most_frequent_confusions():
    matrix, labels = random_matrix(40, 3), [f"class-{c}" for c in range(40)]
    matrix[7, 31], matrix[30, 2] = 99, 98
    first, head, *lines = confusion_table(csr_array(matrix), labels).split("\n")
    assert "40 classes" in first and "confusion.csv" in first and head.split() == ["gold", "->", "predicted", "texts"]
    found = [(int(g), int(p), int(n)) for g, p, n in (re.findall(r"\d+", line) for line in lines)]
    cells = [(g, p, int(matrix[g, p])) for g in range(40) for p in range(40) if g != p]
    assert found == sorted(cells, key=lambda cell: -cell[2])[:10]
    assert found[0] == (7, 31, 99)


def test_many_classes_without_a_mistake():
    text = confusion_table(csr_array(np.eye(13, dtype=np.int64)), [str(c) for c in range(13)])
    assert text.endswith("No text was given a wrong class.")


def test_confusion_csv_reads_back(tmp_path):
    path = tmp_path / "confusion.csv"
    path.write_text("an older and much longer file\n" * 99)
    matrix = random_matrix(len(HOSTILE))
    write_confusion_csv(csr_array(matrix), HOSTILE, path)
    with open(path, encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["gold \\ predicted", *HOSTILE]
    assert rows == [[label, *map(str, row)] for label, row in zip(HOSTILE, matrix.tolist(), strict=True)]
    assert list(tmp_path.iterdir()) == [path]


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_confusions_of_very_many_classes_are_listed(tmp_path):
    """Their matrix would have 900 million cells."""
    rng, labels = np.random.default_rng(3), [f"class {c}" for c in range(30_000)]
    gold, predicted = rng.integers(0, 30_000, (2, 500))
    predicted[:99] = gold[:99]
    matrix = confusion(gold, None, len(labels), predicted)
    write_confusion_csv(matrix, labels, tmp_path / "confusion.csv")
    head, *rows = csv.reader((tmp_path / "confusion.csv").open())
    assert head == ["gold", "predicted", "texts"]
    pairs = Counter((f"class {g}", f"class {p}") for g, p in zip(gold, predicted, strict=True))
    assert {(g, p): int(n) for g, p, n in rows} == pairs and len(rows) == len(pairs)
    assert len(confusion_table(matrix, labels).split("\n")) == 12


@pytest.mark.parametrize("classes", [2, 12, 50, 300])
def test_the_picture_has_a_sensible_size(classes, tmp_path):
    path = tmp_path / "confusion.png"
    draw_confusion(np.eye(classes, dtype=int), [f"class {c}" for c in range(classes)], path, "validation")
    assert all(300 < pixels < 2200 for pixels in size_of(path))
    assert list(tmp_path.iterdir()) == [path]


def test_the_picture_shows_the_matrix_and_its_names(tmp_path):
    pictures = set()
    for name, matrix, labels, title in (
        ("a", MATRIX, "abc", "one"),
        ("b", MATRIX + 1, "abc", "one"),
        ("c", MATRIX, "abd", "one"),
        ("d", MATRIX, "abc", "two"),
        ("e", MATRIX.T, "abc", "one"),
        ("f", 7 * MATRIX, "abc", "one"),
    ):
        draw_confusion(matrix, list(labels), tmp_path / name, title)
        pictures.add((tmp_path / name).read_bytes())
    assert len(pictures) == 6


def test_colours_are_shares_of_the_gold_class(tmp_path):
    from matplotlib import colormaps
    from matplotlib.image import imread

    path = tmp_path / "confusion.png"
    draw_confusion(np.array([[8, 2], [2000, 8000]]), ["a", "b"], path, "")
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    area = Counter(map(tuple, pixels.tolist()))
    large = {colour for colour, count in area.items() if count > 20_000 and colour != (255, 255, 255)}
    expected = {colormaps["Blues"](share, bytes=True)[:3] for share in (0.2, 0.8)}
    assert large == expected


def test_any_name_can_be_drawn_without_a_warning(tmp_path):
    labels = [*HOSTILE, "ใจ", "\ud800", "$", "$x^$"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_confusion(random_matrix(len(labels)), labels, tmp_path / "confusion.png", "$\\frac$ 심장\n")
    assert size_of(tmp_path / "confusion.png")


def test_per_class_table_shows_the_rows():
    gold = np.repeat([0, 1], [3, 5])
    probabilities = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 1, 1, 1, 1]]
    assert per_class_table(per_class(gold, probabilities, ["질환", "healthy", "never"])).split("\n") == [
        "class    precision  recall     F1  texts",
        "질환         1.000   0.667  0.800      3",
        "healthy      0.833   1.000  0.909      5",
        "never        0.000   0.000  0.000      0",
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_most_confident_mistakes_come_first(seed):
    rng = np.random.default_rng(seed)
    labels, n = ["a", "b", "c"], 60
    gold = rng.integers(0, 3, n)
    weights = rng.integers(1, 4, (n, 3)).astype(np.float32)
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    rows = [Example(f"f:{row + 1}", f"text {row}", "pair" if row % 2 else None, labels[gold[row]]) for row in range(n)]
    expected = []
    for row in range(n):
        best = max(range(3), key=lambda c: probabilities[row, c])
        if best != gold[row]:
            names = (labels[gold[row]], labels[best])
            expected.append((rows[row].place, rows[row].text, rows[row].text_pair, *names, probabilities[row, best]))
    expected.sort(key=lambda found: -found[-1])
    assert 20 < len(expected)
    assert most_confident(rows, gold, probabilities, labels) == expected[:20]


def code_spans(line: str) -> tuple[str, list[str]]:
    """What is outside and inside of code spans; one goes from backticks to as many backticks (CommonMark 6.1)."""
    outside, spans, at = "", [], 0
    while match := re.compile("`+").search(line, at):
        outside += line[at : match.start()]
        end = re.compile(f"(?<!`){match[0]}(?!`)").search(line, match.end())
        assert end, "a code span that does not end"
        inner = line[match.end() : end.start()]
        spans.append(inner[1:-1] if inner.startswith(" ") and inner.endswith(" ") and inner.strip() else inner)
        at = end.end()
    return outside + line[at:], spans


def readable(text: str) -> str:
    text = " ".join("".join(" " if unprintable(c) else c for c in text).split())
    return text if len(text) <= 300 else text[:299] + "…"


def unprintable(c: str) -> bool:
    turns = unicodedata.bidirectional(c) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    return turns or unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs")


special = st.sampled_from("`` |*_<>#[]!\\\n\r\t\x00\x1b\x85\u2028\u202e-=")
nasty = st.text(st.one_of(special, st.characters()), max_size=60)


@given(nasty, nasty, nasty, nasty)
@example("f`:1", "` `` ```", "x" * 400, "|a|\n|-|\n")
@example("f:1", "```", "`" * 400, "\n# title\n\n- item")
def test_no_text_breaks_the_markdown(place, label, text, pair):
    found = Mistake(place, text, pair, label, "other", 0.98765)
    lines = mistakes_markdown([found, found._replace(text_pair=None)]).split("\n")
    lines = [line for line in lines if line]
    assert len(lines) == 1 + 3 + 2
    expected = [(place, label, "other"), (text,), (pair,)]
    outsides = []
    for line, inside in zip(lines[1:], [*expected, *expected[:2]], strict=True):
        outside, spans = code_spans(line)
        assert spans == [readable(value) for value in inside if readable(value)]
        outsides.append(outside.replace("(empty)", ""))
    item = "- : gold , predicted  with probability 0.988"
    assert outsides == [item, "  text: ", "  second text: ", item, "  text: "]


def test_no_mistakes_are_said_to_be_none():
    assert "None" in mistakes_markdown([])


def result(accuracy: float) -> dict:
    rest = {"weighted_f1": 0.7, "mcc": -0.25, "macro_precision": 0.61, "macro_recall": 0.62, "auroc": None}
    return {"accuracy": accuracy, "macro_f1": 0.6, "loss": 1.0, **rest}


def test_scores_of_one_seed():
    assert scores_table(SHOWN, combined([result(0.8125)]), None).split("\n") == [
        "                 validation",
        "accuracy              0.812",
        "macro-F1              0.600",
        "weighted F1           0.700",
        "MCC                  -0.250",
        "macro precision       0.610",
        "macro recall          0.620",
        "AUROC             undefined",
    ]


def test_intervals_and_baselines_stand_beside_scores():
    shown, found = {"accuracy": "accuracy", "AUROC": "auroc"}, combined([result(0.8)])
    text = scores_table(shown, found, None, {"validation": {"accuracy": [0.75, 0.85], "auroc": None}})
    assert text.split("\n") == [
        "          validation  95 % interval, validation",
        "accuracy       0.800             0.750 to 0.850",
        "AUROC      undefined                  undefined",
    ]
    assert baselines_table(shown, {"words": {"test": found}}, "test").split("\n") == [
        "without a BERT, test      words",
        "accuracy                  0.800",
        "AUROC                 undefined",
    ]


def test_tables_of_parts_show_the_scores_that_there_are():
    """Of pairs without scores four numbers are undefined that stand before those of pairs with scores."""
    shown = {"MRR": "mrr", "recall at 1": "first", "recall at 10": "ten", "Spearman": "spearman", "Pearson": "pearson"}
    ranks, cosines = dict.fromkeys(("mrr", "first", "ten")), {"spearman": 0.25, "pearson": 0.5}
    parts = {name: {"texts": 9, "scores": ranks | found, "intervals": dict.fromkeys(ranks) | {"spearman": [0.1, 0.3]}}
             for name, found in (("A", cosines), ("B", cosines | {"pearson": None}))}  # fmt: skip
    assert parts_table(shown, parts, "site").splitlines() == [
        "site  texts  Spearman   95 % interval    Pearson",
        "A         9     0.250  0.100 to 0.300      0.500",
        "B         9     0.250  0.100 to 0.300  undefined",
    ]
    for found in parts.values():
        found["scores"] = {name: {"mean": value, "std": None} for name, value in found["scores"].items()}
    assert parts_of_folds_table(shown, parts, "site").splitlines() == [
        "site  texts  Spearman    Pearson",
        "A         9     0.250      0.500",
        "B         9     0.250  undefined",
    ]
    for found in parts.values():
        found["scores"] = dict.fromkeys(found["scores"], {"mean": None, "std": None})
    assert parts_of_folds_table(shown, parts, "site").split()[:3] == ["site", "texts", "MRR"]


def test_numbers_far_from_1_are_not_shown_as_0():
    shown = {"MAE": "mae", "RMSE": "rmse"}
    small, large = ({"loss": 0.5, "mae": 1.6e-6 * n, "rmse": 3.685856e36 * n} for n in (1, 2))
    lines = scores_table(shown, combined([small, large]), None, {"validation": {"mae": [1e-6, 2e-6], "rmse": [0, 1]}})
    assert [re.split("  +", line) for line in lines.split("\n")[1:3]] == [
        ["MAE", "2.4e-06 ± 1.1e-06", "1e-06 to 2e-06"],
        ["RMSE", "5.529e+36 ± 2.606e+36", "0.000 to 1.000"],
    ]
    metadata = yaml.safe_load("\n".join(f"- {_four_digits(value)}" for value in (3e-7, 0.0, 0.81234, 2e36, -12.5)))
    assert metadata == pytest.approx([3e-7, 0.0, 0.8123, 2e36, -12.5])


def test_scores_of_several_seeds():
    lines = scores_table(SHOWN, combined([result(0.8), result(0.9)]), combined([result(0.7), result(0.7)])).split("\n")
    assert lines[0].split() == ["validation", "test"]
    assert re.split("  +", lines[1])[-2:] == ["0.850 ± 0.071", "0.700 ± 0.000"]
    assert lines[-1] == "mean ± standard deviation over 2 seeds"


@pytest.mark.parametrize(("text", "columns"), [("ที่นี่", 2), ("heart", 5), ("e\u0301", 1), ("中文", 4), ("ශ්\u200dරී", 2)])
def test_marks_on_letters_and_joiners_take_no_column(text, columns):
    assert display_width(text) == columns
