"""What a preparation will do, shown on the beginning of the corpus; nothing is kept."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .console.screen import say, say_example, say_plan
from .prepared import PreparedCorpus
from .sample import prepare_sample
from .settings import PrepCommand

SAMPLE_BYTES = 2_000_000
# Measured: 1.01 GB of clinical articles in 218 s, with a vocabulary of 16,384, on 2 cores; memory depends on the number
# of documents alone. benchmarks/data_preparation.py measures it.
_SECONDS_A_MEGABYTE, _STARTING = 0.215, 5
_MEMORY, _MEMORY_A_DOCUMENT = 0.25e9, 100


def dry_run(command: PrepCommand) -> None:
    """Print rules, examples and the plan of a preparation. The sample lies in a temporary folder meanwhile."""
    with temporary_folder() as folder:
        prepared, whole = prepare_sample(
            command.prep, command.examples, folder / "prepared", SAMPLE_BYTES, Path(command.out), command.static_masks
        )
        show_examples(prepared)
        facts, tokens = report(prepared), whole.tokens(prepared)
        of_sample = facts["train"]["tokens"] + facts["validation"]["tokens"]
        megabytes = facts["corpus"]["bytes"] * tokens / of_sample / 1e6
        disk = whole.bytes_on_disk(prepared) + whole.train * command.static_masks * static_bytes(facts["pairs"])
        meanwhile = whole.bytes_meanwhile(prepared)
        memory = _MEMORY + _MEMORY_A_DOCUMENT * whole.documents(prepared)
    about = whole.about
    say_plan(
        {
            "text": f"{about} {megabytes:,.1f} MB, {tokens:,} tokens",
            "vocabulary": f"{facts['text']['vocab_size']:,} entries",
            "time": f"{about} {_STARTING + megabytes * _SECONDS_A_MEGABYTE:,.0f} s on 2 cores",
            "memory": f"{about} {memory / 1e9:.2f} GB",
            "disk": f"{about} {disk / 1e6:,.0f} MB, and {meanwhile / 1e6:,.0f} MB more until it is done",
        }
    )


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of the system's temporary ones, gone at the end of the block, also where SIGTERM or SIGHUP ends it."""
    # Only the main thread may watch signals.
    ends = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    with tempfile.TemporaryDirectory(prefix="domain-bert-") as folder:

        def end(number: int, frame: FrameType | None) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            # An exception would be lost now and then: libraries catch all while they are imported, and so does open().
            os._exit(128 + number)

        before = [signal.signal(number, end) for number in ends]
        try:
            yield Path(folder)
        finally:
            for number, handler in zip(ends, before, strict=True):
                signal.signal(number, handler)


def report(prepared: PreparedCorpus) -> dict:
    """The content of prep_report.json."""
    return json.loads((prepared.folder / "prep_report.json").read_text(encoding="utf-8"))


def show_examples(prepared: PreparedCorpus) -> None:
    """Say the first examples, decoded, as the report has them."""
    for number, example in enumerate(report(prepared)["examples"], 1):
        say_example(number, example["next_sentence"], example["input"])
        say(f"  masked: {', '.join(example['answers'])}")


def static_bytes(pairs: dict) -> int:
    """Of a masked copy: four lists of 32-bit numbers with their offsets, and the label of the next sentence."""
    return pairs["examples"] * 4 * (4 * (pairs["sequence_length"] + 1) + 1)
