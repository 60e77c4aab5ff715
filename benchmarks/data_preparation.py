"""How fast is raw text prepared, and what does it take, beside the tokenizer alone and the original algorithm?

    python benchmarks/data_preparation.py --corpus articles.txt.gz --tokenizer prepared/tokenizer
    python benchmarks/data_preparation.py --corpus articles.txt.gz --tokenizer prepared/tokenizer --copies 19

The first command takes 6 minutes for 53 MB, the second, which makes 1 GB of it, about 20.

Rows:
  encode_batch, encode_batch_fast   the `tokenizers` library alone on the same documents with the same vocabulary: the
                limit. Only its calls are timed: text in memory, no reading, nothing done with the result. It uses all
                cores in threads of its own, and gets lines or whole documents, in small or large batches, whichever
                it does fastest on the first megabytes. (`encode_batch_fast` leaves character offsets out.)
  ours          `python -m data_prep.run` from its start to its end, in a process of its own: reading, sentences,
                duplicates, ids, pairs, report, everything on disk. With the given vocabulary, and with one of the same
                size trained first. Memory is the most that all its processes have at one moment.
  original      the algorithm of the BERT release in plain Python in memory, one copy, one core, nothing written; its
                tokens come from the fast tokenizer, which it did not have. On the first megabytes only.

Gzipped and other files are written as one plain text file first. MB/s are 10^6 bytes of that file. The sides take turns
until the minutes are over; medians. With --copies N the text stands N times in the file, a number in every document.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from process_tree import measured
from table import Table, code, machine, parser

# Megabytes: of the whole text in a quick run, of the original's, of the peer's, of a try of how to feed it.
QUICK, ORIGINAL, PEER, TRY = 6.0, 8.0, 60.0, 3.0
MB = 1e6


@dataclass(frozen=True)
class Text:
    """The text of a run as one plain file, its documents between blank lines."""

    path: Path
    size: int
    line_rule: str

    def documents(self, megabytes: float) -> Iterator[list[str]]:
        """The lines of the first documents, up to this many megabytes."""
        from data_prep.text.corpus import Corpus

        used = 0
        for document in Corpus([str(self.path)], document="blank-line", line=self.line_rule).documents():
            if used >= megabytes * MB:
                return
            used += num_bytes(document.lines)
            yield document.lines


def main() -> int:
    made = parser(__doc__, minutes=6)
    made.add_argument("--corpus", nargs="+", required=True, help="text as data_prep.run takes it")
    made.add_argument("--tokenizer", required=True, help="folder of a tokenizer, or vocab.txt")
    made.add_argument("--copies", type=int, default=1, help="how often the text stands in the file (default: 1)")
    given = made.parse_args()
    from data_prep.errors import UserError
    from data_prep.vocabulary.wordpiece import WordPieceTokenizer

    minutes = given.minutes / 10 if given.quick else given.minutes
    given.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.results) as folder:
        try:
            tokenizer = WordPieceTokenizer.load(given.tokenizer)
            text = write_text(given.corpus, Path(folder), given.copies, QUICK if given.quick else float("inf"))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        facts = {"machine": machine(), "bytes": text.size, "copies": given.copies, "tokenizer": tokenizer.digest(),
                 "quick": given.quick}  # fmt: skip
        own = [f"benchmarks/{name}.py" for name in ("data_preparation", "original_algorithm", "process_tree")]
        sources = code("data_prep", *own, packages=("tokenizers",))
        table = Table(given.results / "data_preparation.jsonl", facts | {"code": sources})
        measure(table, text, tokenizer, given.tokenizer, minutes)
    print(f"{text.size / MB:,.1f} MB of text, vocabulary {tokenizer.vocab_size:,}; {machine()}\n")
    print(table.markdown({"": "", "rate": "MB/s", "spread": "lowest - highest", "rounds": "rounds",
                          "seconds": "seconds", "memory": "peak memory, GB", "disk": "on disk / text",
                          "note": ""}))  # fmt: skip
    ours = table.rows["ours, given vocabulary"]["rate"]
    for peer in ("encode_batch", "encode_batch_fast"):
        print(f"\nours, given vocabulary / {peer}: {ours / table.rows[peer]['rate']:.2f}")
    return 0


def every_copy(corpus, copies: int, megabytes: float) -> Iterator[tuple[int, list[str]]]:
    """The number of the copy and the lines of every document that has any; of each copy up to this many megabytes."""
    for copy in range(copies):
        used = 0
        for document in corpus.documents():
            if used >= megabytes * MB:
                break
            if document.lines:
                yield copy, document.lines
            used += num_bytes(document.lines)


def write_text(paths: list[str], folder: Path, copies: int, megabytes: float) -> Text:
    """Write the documents of a corpus, copied several times, as one file of at most about this many megabytes."""
    from data_prep.text.corpus import Corpus

    corpus, path = Corpus(paths), folder / "text.txt"
    with path.open("w", encoding="utf-8") as file:
        for copy, lines in every_copy(corpus, copies, megabytes / copies):
            first = f"{lines[0]} {copy}" if copies > 1 else lines[0]
            file.write("\n".join([first, *lines[1:]]) + "\n\n")
    return Text(path, path.stat().st_size, corpus.rules[0].line)


def measure(table: Table, text: Text, tokenizer, tokenizer_path: str, minutes: float) -> None:
    """Fill in the rows that are not there: the sides in turns, then the original."""
    sides: dict[str, Callable[[], dict]] = {}
    for name in ("encode_batch", "encode_batch_fast"):
        if name not in table.rows:
            sides[name] = peer(name, text, tokenizer)
    size = max(128, round(tokenizer.vocab_size / 64) * 64)
    for name, option in (
        ("ours, given vocabulary", ["--tokenizer", tokenizer_path]),
        ("ours, vocabulary trained", ["--vocab-size", str(size)]),
    ):
        if name not in table.rows:
            sides[name] = lambda option=option: prepared(text, option)
    for name, found in in_turns(sides, minutes).items():
        table.row(name, lambda found=found: summary(found))
    table.row("original algorithm", lambda: summary([original(text, tokenizer)]))


def in_turns(sides: dict[str, Callable[[], dict]], minutes: float) -> dict[str, list[dict]]:
    """What each side gives, one after the other, again and again; at least once, and while another round fits."""
    found: dict[str, list[dict]] = {name: [] for name in sides}
    began, rounds = time.monotonic(), 0
    while sides and (time.monotonic() - began) * (rounds + 1) / max(1, rounds) <= minutes * 60 or not rounds:
        for name, side in sides.items():
            found[name].append(side())
        rounds += 1
    return found


def summary(found: list[dict]) -> dict:
    """Medians over the rounds, and the spread of the rate."""
    rates = [row["bytes"] / MB / row["seconds"] for row in found]
    row = {
        "rate": round(statistics.median(rates), 2),
        "spread": f"{min(rates):.2f} - {max(rates):.2f}",
        "rounds": len(found),
        "seconds": round(statistics.median(row["seconds"] for row in found), 2),
        "note": found[-1].get("note", ""),
    }
    if found[-1].get("memory"):
        row["memory"] = round(max(row["memory"] for row in found) / 1e9, 2)
    if "disk" in found[-1]:
        row["disk"] = round(found[-1]["disk"] / found[-1]["bytes"], 2)
    return row


def peer(name: str, text: Text, tokenizer) -> Callable[[], dict]:
    """A function of `tokenizers` as a side, with its fastest batches."""
    from data_prep.vocabulary.wordpiece import build_tokenizer

    bare = build_tokenizer(tokenizer.vocabulary, tokenizer.lowercase, tokenizer.strip_accents, tokenizer.split_chinese)
    encode = getattr(bare, name)

    def rate(way: tuple[str, float]) -> float:
        found = encoded(encode, text.documents(TRY), *way)
        return found["bytes"] / found["seconds"]

    ways = list(product(("lines", "documents"), (0.5, 4.0)))
    rate(ways[0])
    best = max(ways, key=rate)
    note = f"{best[0]}, {best[1]} MB a call"
    return lambda: encoded(encode, text.documents(PEER), *best) | {"note": note}


def encoded(encode: Callable, documents: Iterable[list[str]], unit: str, megabytes: float) -> dict:
    """Bytes, and the seconds in which `encode` does them, a batch of lines or of documents at a time."""
    seconds, size = 0.0, 0
    for batch, batch_bytes in batches(documents, unit, megabytes):
        began = time.perf_counter()
        result = encode(batch, add_special_tokens=False)
        seconds += time.perf_counter() - began
        # Its memory is given back after the clock has stopped.
        del result
        size += batch_bytes
    return {"bytes": size, "seconds": seconds}


def batches(documents: Iterable[list[str]], unit: str, megabytes: float) -> Iterator[tuple[list[str], int]]:
    """Texts of about this many megabytes together, and their bytes."""
    batch: list[str] = []
    size = 0
    for lines in documents:
        batch += lines if unit == "lines" else ["\n".join(lines)]
        size += num_bytes(lines)
        if size >= megabytes * MB:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


def num_bytes(lines: Iterable[str]) -> int:
    """Bytes of lines in UTF-8, line breaks included."""
    return sum(len(line.encode()) + 1 for line in lines)


def prepared(text: Text, options: list[str]) -> dict:
    """`python -m data_prep.run` on the text, from its start to its end."""
    import data_prep

    root = str(Path(data_prep.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory(dir=text.path.parent) as folder:
        out = Path(folder) / "prepared"
        command = [sys.executable, "-m", "data_prep.run", "--corpus", str(text.path), "--document", "blank-line",
                   "--line", text.line_rule, "--out", str(out), *options]  # fmt: skip
        seconds, memory = measured(command, environment)
        disk = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return {"bytes": text.size, "seconds": seconds, "memory": memory, "disk": disk}


def original(text: Text, tokenizer) -> dict:
    """One copy of the examples as the release made them, on one core."""
    from original_algorithm import Vocabulary, make_examples

    documents = list(text.documents(min(ORIGINAL, text.size / MB / 3)))
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    began = time.perf_counter()
    ids = [[sentence for sentence in tokenizer.encode(lines) if sentence] for lines in documents]
    examples = make_examples([document for document in ids if document], vocabulary, length=128, seed=1)
    seconds = time.perf_counter() - began
    os.environ["TOKENIZERS_PARALLELISM"] = before or "true"
    size = sum(map(num_bytes, documents))
    return {"bytes": size, "seconds": seconds, "note": f"{len(examples):,} examples of {size / MB:.1f} MB"}


if __name__ == "__main__":
    sys.exit(main())
