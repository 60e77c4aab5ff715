"""Does the memory of a preparation grow with its text? Measured on text that brings new words to its very end.

    python benchmarks/fresh_words.py --megabytes 100 300 1000

Takes two minutes for 100 MB beside other work on two cores, and 1.7 times the room of the text on the disk.

The text is made up, the same every time: words by the law of Zipf and Mandelbrot (exponent 1.4, the first word makes
7 %), without a last one, spelled in syllables, the rarer the longer; sentences of 6 to 29 words; documents of 400 words
in the median, log-normal. A shorter text is the beginning of a longer one. No part of it is a copy of another, so
everything that keeps words, lines or documents grows as it would with real text.

Each row is `python -m data_prep.run` on one text, vocabulary included, from its start to its end, in a process of its
own. Memory is the most that all its processes have at one moment (proportional set size, five looks a second).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from process_tree import measured
from table import DEFAULT_FOLDER, Table, code, machine

MB = 1e6
EXPONENT, SHIFT, SENTENCE, DOCUMENT, SPREAD = 1.4, 5, (6, 30), 400, 1.0
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]
# The rarest word, of eight syllables: one of a million is that rare.
LAST = 1e16
# Words that are drawn at once.
DRAWN = 1 << 20


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--megabytes", type=int, nargs="+", default=[100, 300], help="sizes of text (default: 100 300)")
    made.add_argument("--results", type=Path, default=DEFAULT_FOLDER, help=f"folder that keeps finished rows "
                      f"(default: {DEFAULT_FOLDER})")  # fmt: skip
    given = made.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine(), "code": code("data_prep", "benchmarks/fresh_words.py", "benchmarks/process_tree.py")}
    table = Table(given.results / "fresh_words.jsonl", facts)
    for megabytes in given.megabytes:
        with tempfile.TemporaryDirectory(dir=given.results) as folder:
            table.row(f"{megabytes} MB", lambda folder=folder, size=megabytes: prepared(Path(folder), size))
    print(f"{machine()}\n")
    print(table.markdown({"": "text", "words": "different words, million", "seconds": "seconds", "rate": "MB/s",
                          "memory": "peak memory, GB"}))  # fmt: skip
    return 0


def prepared(folder: Path, megabytes: int) -> dict:
    """Time and memory of the preparation of a text of about this many megabytes."""
    import data_prep

    different = write_text(folder / "text.txt", megabytes * MB)
    size = (folder / "text.txt").stat().st_size
    root = str(Path(data_prep.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "data_prep.run", "--corpus", str(folder / "text.txt"), "--out",
               str(folder / "prepared")]  # fmt: skip
    seconds, memory = measured(command, environment)
    return {
        "words": round(different / 1e6, 2),
        "seconds": round(seconds, 1),
        "rate": round(size / MB / seconds, 2),
        "memory": "" if memory is None else round(memory / 1e9, 3),
    }


def write_text(path: Path, size: float) -> int:
    """Write documents, blank lines between, until this many bytes are written; gives the number of different words."""
    written, known = 0, np.empty(0, dtype=np.int64)
    with path.open("w", encoding="ascii") as file:
        for ranks, text in stretches(np.random.default_rng(1)):
            file.write(text)
            written += len(text)
            known = np.union1d(known, ranks)
            if written >= size:
                return len(known)
    raise AssertionError("stretches have no end")


def stretches(draw: np.random.Generator) -> Iterator[tuple[np.ndarray, str]]:
    """Whole documents again and again: the ranks of their words, int64 [words], and their text."""
    while True:
        lengths = np.maximum(12, draw.lognormal(np.log(DOCUMENT), SPREAD, DRAWN // DOCUMENT)).astype(np.int64)
        ranks = 1 + np.minimum(SHIFT * draw.pareto(EXPONENT - 1, int(lengths.sum())), LAST).astype(np.int64)
        different, places = np.unique(ranks, return_inverse=True)
        words = np.array([spelled(rank) for rank in different.tolist()], dtype=object)[places].tolist()
        yield ranks, "".join(written(words, lengths.tolist(), draw))


def written(words: list[str], lengths: list[int], draw: np.random.Generator) -> Iterator[str]:
    """Documents of this many words each, a sentence a line."""
    start = 0
    for length in lengths:
        end = start + length
        while start < end:
            stop = min(end, start + int(draw.integers(*SENTENCE)))
            yield f"{' '.join(words[start:stop]).capitalize()}.\n"
            start = stop
        yield "\n"


def spelled(rank: int) -> str:
    """The word of this rank in a language of 100 syllables: of n syllables there are 100 to the power of n."""
    word = ""
    while rank:
        rank, syllable = divmod(rank - 1, len(SYLLABLES))
        word += SYLLABLES[syllable]
    return word


if __name__ == "__main__":
    sys.exit(main())
