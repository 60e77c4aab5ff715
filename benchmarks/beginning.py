"""The first documents of a corpus, as a smaller corpus: OUT/text.txt.

    python benchmarks/beginning.py --corpus articles.txt.gz --megabytes 5 --out articles-5
    python benchmarks/beginning.py --corpus novels.txt.gz --megabytes 1 --of-each 50 --out novels-1

A document is a block between blank lines, and comes whole unless --of-each says otherwise.
"""

import argparse
import gzip
import math
import sys
from pathlib import Path

from table import run


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--corpus", type=Path, required=True, help="text, .gz or not")
    made.add_argument("--megabytes", type=float, required=True, help="the most that is taken")
    made.add_argument(
        "--of-each", type=float, default=math.inf, metavar="KILOBYTES", help="lines of a document, at most"
    )
    made.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = made.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(lines) for lines in documents(given.corpus, given.megabytes, 1e3 * given.of_each))
    (given.out / "text.txt").write_text(text + "\n", encoding="utf-8")
    return 0


def documents(path: Path, megabytes: float, of_each: float = math.inf) -> list[list[str]]:
    """The first documents of a file, each a list of lines; at least one.

    Args:
        of_each: the most bytes that are taken of a document; further lines of it are left out.
    """
    room, found, lines, size = megabytes * 1e6, [], [], 0
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                found += [lines] if lines else []
                lines, size = [], 0
            elif (size := size + len(line.encode())) <= of_each:
                room -= len(line.encode())
                if room < 0 and found:
                    return found
                lines.append(line.rstrip("\n"))
    return [*found, lines] if lines else found


if __name__ == "__main__":
    sys.exit(run(main))
