"""Vectors of texts: texts a second and peak memory, compared with sentence-transformers, which gives the same vectors.

    python benchmarks/embedding.py --model FOLDER --texts sentences.jsonl

Both sides pool the mean of the last layer of one folder, which `finetune.embed --save-model` writes, on as many
threads. They take turns in one process, round by round, whose memory is arranged as in ours; the ratio is that of the
medians. sentence-transformers has the batch size that is fastest in a try, and sorts by length itself. Their vectors
are compared before anything is timed. Then the whole file is embedded by a process of each side, whose peak memory is
measured; with --busy, which shows how both do beside another program, it is not.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

from process_tree import measured
from table import machine, run

BATCHES = (16, 32, 64, 128)
LEAST_ROUNDS = 3
# Of the largest number of a vector.
EXACT = 1e-5
# Reads the file and encodes it at once, as its users do.
THEIRS = """
import sys
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(int(sys.argv[5]))
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = open(sys.argv[2], encoding="utf-8").read().splitlines()
np.save(sys.argv[3], model.encode(texts, batch_size=int(sys.argv[4])))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder of ours or of transformers")
    parser.add_argument("--texts", required=True, help="a file with a column of texts")
    parser.add_argument("--texts-a-round", type=int, default=2048, help="texts of a round (default: 2048)")
    parser.add_argument("--minutes", type=float, default=5, help="time for the rounds, at least 3 (default: 5)")
    parser.add_argument("--most", type=int, default=50_000, help="texts of the whole file (default: 50000)")
    parser.add_argument("--busy", action="store_true", help="beside a process that keeps one core busy")
    parser.add_argument("--quick", action="store_true", help="few texts, 3 rounds: shows that it runs")
    given = parser.parse_args()
    if given.quick:
        given.texts_a_round, given.minutes, given.most = 128, 0, 256
    with tempfile.TemporaryDirectory() as folder:
        compare(given, Path(folder))


def compare(given: argparse.Namespace, folder: Path) -> None:
    """Print the rates, then the peaks."""
    import torch
    from sentence_transformers import SentenceTransformer

    from finetune import Embedder
    from pretrain.engine.device import default_threads

    torch.set_num_threads(default_threads())
    saved, every = folder / "model", list(islice(texts_of(given.texts), given.most))
    Embedder(given.model, pooling="mean").save(saved)
    ours, theirs = Embedder(saved, device="cpu"), SentenceTransformer(str(saved), device="cpu")
    check_same(ours, theirs, every[:64])
    sample = every[: given.texts_a_round]
    seconds = {size: time_of(partial(theirs.encode, sample[:512], batch_size=size)) for size in BATCHES}
    batch_size = min(seconds, key=seconds.get)
    sides = {"ours": ours.embed, "sentence-transformers": partial(theirs.encode, batch_size=batch_size)}
    with busy_process() if given.busy else nullcontext():
        rates = take_turns(sides, every, given.texts_a_round, 60 * given.minutes)
    print(machine())
    print(f"{given.model}, texts up to {ours.sequence_length} tokens, float32, batches of {batch_size} there")
    for name, found in rates.items():
        print(f"{name:<24}{statistics.median(found):8.0f} texts/s   ({min(found):.0f} to {max(found):.0f})")
    print(f"{'ratio of the medians':<24}{statistics.median(rates['ours']) / statistics.median(rates[name]):8.2f}")
    if not given.busy:
        peaks(saved, every, batch_size, folder)


@contextmanager
def busy_process() -> Iterator[None]:
    """A program that takes all it gets of a core, until the block ends."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def texts_of(file: str) -> list[str]:
    """The texts of a file, as `finetune.embed` finds them."""
    from finetune.embed import EmbedSettings
    from finetune.inputs import input_sources, parts_of
    from finetune.rows import BadRows
    from finetune.vectors.embedder import Texts

    settings = EmbedSettings(file=(file,))
    parts = parts_of(input_sources(settings), settings, Texts(), (), BadRows(True), 1024)
    return [example.text for part in parts for _, example in part if example]


def check_same(ours, theirs, texts: list[str]) -> None:
    """Refuse to compare sides that do not compute the same."""
    import numpy as np

    one, other = ours.embed(texts), theirs.encode(texts)
    apart = np.abs(one - other).max() / np.abs(other).max()
    assert apart < EXACT, f"vectors differ by {apart:.1e} of the largest number"


def take_turns(
    sides: dict[str, Callable[[list[str]], object]], every: list[str], count: int, seconds: float
) -> dict[str, list[float]]:
    """Texts a second of each side, round by round; both have the same texts, and who comes first changes."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    until, number = time.perf_counter() + seconds, 0
    while number < LEAST_ROUNDS or time.perf_counter() < until:
        start = number * count % max(1, len(every) - count + 1)
        part = every[start : start + count]
        for name in list(sides)[:: 1 if number % 2 else -1]:
            rates[name].append(len(part) / time_of(partial(sides[name], part)))
        number += 1
    return rates


def time_of(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def peaks(saved: Path, every: list[str], batch_size: int, folder: Path) -> None:
    """Print wall time and peak memory of a process of each side for all texts."""
    import torch

    import finetune

    lines = folder / "texts.txt"
    lines.write_text("".join(" ".join(text.split()) + "\n" for text in every), encoding="utf-8")
    commands = {
        "ours": ["-m", "finetune.embed", str(lines), f"--model={saved}", f"--out={folder}/ours.npy", "--device=cpu"],
        "sentence-transformers": ["-c", THEIRS, str(saved), str(lines), f"{folder}/theirs.npy", str(batch_size),
                                  str(torch.get_num_threads())],
    }  # fmt: skip
    root = str(Path(finetune.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    for name, command in commands.items():
        seconds, peak = measured([sys.executable, *command], environment)
        memory = "unknown" if peak is None else f"{peak / 1e9:.2f} GB"
        print(f"{name:<24}{len(every):,} texts in {seconds:.0f} s, start included, peak memory {memory}")


if __name__ == "__main__":
    sys.exit(run(main))
