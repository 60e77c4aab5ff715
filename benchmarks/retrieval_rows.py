"""Pairs for a search among articles: a title, and the text of its article. One file for each part of the corpus.

    python benchmarks/retrieval_rows.py --corpus shared/data/pmc-rct-text --out titles

The corpus is a folder of train.txt.gz, validation.txt.gz and test.txt.gz: a title in the first line of an article, then
a sentence a line, a blank line between articles. OUT/train.jsonl and so on have rows of "query" and "document"; an
article is in the part that it is in there. Articles with fewer sentences than are asked for are left out.
"""

import argparse
import json
import sys
from pathlib import Path

from beginning import documents
from table import run

PARTS = ("train", "validation", "test")


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--corpus", type=Path, required=True, help="folder with the three files")
    searches = "what searches: the title, or the first sentence behind it (default: %(default)s)"
    made.add_argument("--query", choices=("title", "sentence"), default="title", help=searches)
    made.add_argument("--sentences", type=int, default=5, help="of a document (default: %(default)s)")
    made.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = made.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        articles = documents(given.corpus / f"{part}.txt.gz", float("inf"))
        found = rows(articles, given.query, given.sentences)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
        (given.out / f"{part}.jsonl").write_text(text, encoding="utf-8")
        print(f"{part}: {len(found):,} of {len(articles):,} articles")
    return 0


def rows(articles: list[list[str]], query: str, sentences: int) -> list[dict[str, str]]:
    """A row for each article that is long enough.

    Args:
        articles: lines, the title first.
        query: "title", or "sentence" for the line behind it.
        sentences: lines of a document, those behind the query.
    """
    begin = {"title": 0, "sentence": 1}[query]
    return [
        {"query": lines[begin], "document": " ".join(lines[begin + 1 : begin + 1 + sentences])}
        for lines in articles
        if len(lines) > begin + sentences
    ]


if __name__ == "__main__":
    sys.exit(run(main))
