"""Labelled texts of several kinds for fine_tuning_rates.py: small and large, short and long, balanced and not.

    python benchmarks/labelled_sets.py --data DATA --out sets

DATA holds folders of one set each (trec, sick, pubmedqa-l, rct-sections, hoc, english-novels-a: train.jsonl and so on).
Every set becomes sets/NAME/train.jsonl, validation.jsonl and test.jsonl, of as many rows as keep a training of four
layers within minutes. Some are made here, to be unlike the others: "authors", short sentences of two novelists, to be
told apart; "rare", one class of thirty; and of four sets the first 240 rows. All draws have a fixed seed.
"""

import argparse
import gzip
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

from table import run

Rows = list[dict]
Parts = tuple[Rows, Rows, Rows]
NAMES = ("train", "validation", "test")
AUTHORS = {"Eliot": ("FELIX HOLT", "DANIEL DERONDA"), "Lytton": ('"MY NOVEL."',)}


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, help="folder with the sets")
    made.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = made.parse_args()
    for name, make in SETS.items():
        for part, rows in zip(NAMES, make(given.data), strict=True):
            path = given.out / name / f"{part}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
            print(f"{path}: {len(rows):,} rows")
    return 0


def opened(path: Path) -> str:
    """The text of a file, which may be there as .gz."""
    zipped = path.with_name(f"{path.name}.gz")
    return gzip.decompress(zipped.read_bytes()).decode() if zipped.exists() else path.read_text(encoding="utf-8")


def read(data: Path, name: str, part: str, most: int, label: Callable[[dict], str | None]) -> Rows:
    """Up to `most` rows of a part, drawn evenly; rows without a label are left out."""
    rows = [json.loads(line) for line in opened(data / name / f"{part}.jsonl").splitlines()]
    kept = [
        {key: row[key] for key in ("text", "text_a", "text_b") if key in row} | {"label": found}
        for row in rows
        if (found := label(row)) is not None
    ]
    return drawn(kept, most)


def drawn(rows: Rows, most: int) -> Rows:
    """So many of the rows, or all, in an order of their own."""
    return random.Random(1).sample(rows, min(most, len(rows)))


def parted(rows: Rows, validation: int) -> tuple[Rows, Rows]:
    """The rows in two parts: all but the first `validation` rows, and those."""
    return rows[validation:], rows[:validation]


def by_name(row: dict) -> str:
    return row["label"]


def sections(data: Path, label: Callable[[dict], str | None] = by_name) -> Parts:
    """Sections of clinical abstracts."""
    sizes = {"train": 5000, "validation": 500, "test": 1000}
    return tuple(read(data, "rct-sections", part, most, label) for part, most in sizes.items())


def trec(data: Path) -> Parts:
    """Questions by the kind of their answer."""
    return *parted(read(data, "trec", "train", 10_000, by_name), 500), read(data, "trec", "test", 1000, by_name)


def sick(data: Path) -> Parts:
    """Pairs of sentences: does the second follow?"""
    return tuple(read(data, "sick", part, most, by_name) for part, most in zip(NAMES, (5000, 500, 1000), strict=True))


def pubmedqa(data: Path) -> Parts:
    """Pairs of a question and an abstract."""
    return *parted(read(data, "pubmedqa-l", "train", 500, by_name), 50), read(data, "pubmedqa-l", "test", 500, by_name)


def hallmarks(data: Path) -> Parts:
    """Does a sentence name a hallmark of cancer?"""
    sizes = {"train": 5000, "validation": 500, "test": 1000}
    return tuple(
        read(data, "hoc", part, most, lambda row: "some" if row["labels"] else "none") for part, most in sizes.items()
    )


def rare(data: Path) -> Parts:
    """Is a sentence from the objective of an abstract? One in thirty is."""
    return sections(data, lambda row: "objective" if row["label"] == "OBJECTIVE" else "other")


def authors(data: Path) -> Parts:
    """Which of two novelists wrote a sentence of 5 to 14 words? From one part of a novel into one part of the set."""
    novels = opened(data / "english-novels-a" / "train.txt").split("\n\n")
    parts: tuple[Rows, Rows, Rows] = ([], [], [])
    for author, beginnings in AUTHORS.items():
        own = " ".join(novel for novel in novels if novel.lstrip().startswith(beginnings))
        texts = [text for text in re.split(r"(?<=[.!?])\s+", own) if 5 <= len(text.split()) <= 14]
        cuts = (0, int(0.8 * len(texts)), int(0.87 * len(texts)), len(texts))
        for part, start, end, most in zip(parts, cuts, cuts[1:], (3460, 250, 500), strict=False):
            part += drawn([{"text": text, "label": author} for text in texts[start:end]], most)
    return tuple(drawn(part, len(part)) for part in parts)


def few(make: Callable[[Path], Parts]) -> Callable[[Path], Parts]:
    """The same with 240 rows to learn from."""

    def made(data: Path) -> Parts:
        train, validation, test = make(data)
        return train[:240], validation[:120], test

    return made


SETS = {
    "sections": sections,
    "trec": trec,
    "sick": sick,
    "pubmedqa": pubmedqa,
    "hallmarks": hallmarks,
    "authors": authors,
    "rare": rare,
}
SETS |= {f"{name}240": few(SETS[name]) for name in ("trec", "sections", "sick", "authors")}

if __name__ == "__main__":
    sys.exit(run(main))
