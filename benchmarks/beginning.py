"""The first documents of a corpus, as a smaller corpus: OUT/text.txt.

    python benchmarks/beginning.py --corpus articles.txt.gz --megabytes 5 --out articles-5

A document is a block between blank lines, and comes whole.
"""

import argparse
import gzip
import sys
from pathlib import Path


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--corpus", type=Path, required=True, help="text, .gz or not")
    made.add_argument("--megabytes", type=float, required=True, help="the most that is taken")
    made.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = made.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(lines) for lines in documents(given.corpus, given.megabytes))
    (given.out / "text.txt").write_text(text + "\n", encoding="utf-8")
    return 0


def documents(path: Path, megabytes: float) -> list[list[str]]:
    """The first documents of a file, each a list of lines; at least one."""
    room, found, lines = megabytes * 1e6, [], []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        for line in file:
            room -= len(line.encode())
            if room < 0 and found:
                return found
            if line.strip():
                lines.append(line.rstrip("\n"))
            elif lines:
                found.append(lines)
                lines = []
    return [*found, lines] if lines else found


if __name__ == "__main__":
    sys.exit(main())
