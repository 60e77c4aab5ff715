"""The first documents of a corpus, as a smaller corpus: OUT/text.txt.

    python benchmarks/beginning.py --corpus articles.txt.gz --megabytes 5 --out articles-5

A document is a block between blank lines; the last one is whole.
"""

import argparse
import sys
from pathlib import Path

from canaries import documents


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--corpus", type=Path, required=True, help="text, .gz or not")
    made.add_argument("--megabytes", type=float, required=True, help="of it")
    made.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = made.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(lines) for lines in documents(given.corpus, given.megabytes))
    (given.out / "text.txt").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
