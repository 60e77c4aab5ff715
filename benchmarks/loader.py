"""How fast are training batches drawn, packed and masked, and how long does a training step wait for them?

    python benchmarks/loader.py --prepared prepared

About 2 minutes. Both parts use the classes that the training loop draws from (`pretrain.batches`), on the training part
of a prepared corpus, at each sequence length:

  tokens/s on one core   everything from the ids on disk (mapped into memory) to the tensors of a masked batch: building
                         and ordering the pairs of an epoch, drawing, packing, masking. One thread on one core, through
                         whole buffers (four shards, which is an epoch of up to 256 MB of text), again and again;
                         special tokens are counted, padding there is none. Median over the buffers.
  waiting                the default training step of the preset (model, optimizer, precision, all threads), each with
                         its own draw; the time in which the loop waits for data as a share of the step. Building pairs
                         happens once a buffer and is divided among its steps.
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

# Arranges the memory of the process as in a real run, which has to come before torch.
import pretrain  # noqa: F401

# isort: split
from table import Table, code, machine, parser

WARM_UP = 3
SOURCES = ("data_prep", "model", "pretrain", "benchmarks/loader.py", "benchmarks/one_step.py")
# In the middle of a budget a step predicts as many tokens as in the mean over it.
PROGRESS = 0.5


def main() -> int:
    made = parser(__doc__, minutes=2)
    made.add_argument("--prepared", type=Path, required=True, help="folder that data_prep.run wrote")
    made.add_argument("--lengths", default="128,512", help="sequence lengths (default: 128,512)")
    made.add_argument("--preset", default="mini", help="size of the model whose steps wait (default: mini)")
    given = made.parse_args()
    from data_prep.errors import UserError
    from data_prep.prepared import PreparedCorpus

    seconds = given.minutes * (6 if given.quick else 60)
    lengths = [int(length) for length in given.lengths.split(",")]
    try:
        prepared = PreparedCorpus(given.prepared)
        facts = {"machine": machine(), "prepared": prepared.digest, "preset": given.preset, "seconds": seconds}
        table = Table(given.results / "loader.jsonl", facts | {"code": code(*SOURCES)})
        for length in lengths:
            table.row(f"length {length}", lambda n=length: measure(prepared, given.preset, n, seconds / len(lengths)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{prepared.manifest['train']['tokens']:,} tokens, steps of --preset {given.preset}; {machine()}\n")
    print(table.markdown({"": "", "rate": "tokens/s on one core", "spread": "lowest - highest", "pairs": "of it pairs",
                          "buffers": "buffers", "batch": "tokens a step", "step": "step, ms", "wait": "waiting, ms",
                          "share": "share of a step", "steps": "steps"}))  # fmt: skip
    return 0


def measure(prepared, preset: str, length: int, seconds: float) -> dict:
    """One row: a third of the time for one core, the rest for steps."""
    import torch

    from data_prep.settings import ExampleSettings
    from pretrain.build import make_data
    from pretrain.engine.distributed import World
    from pretrain.objectives import make_objective
    from pretrain.resolve import automatic_batch_size, resolve
    from pretrain.settings import PretrainSettings

    examples = ExampleSettings(sequence_length=length)
    settings = resolve(PretrainSettings(prepared=str(prepared.folder), preset=preset, examples=examples))
    torch.set_num_threads(settings.threads)
    objective = make_objective(settings, prepared)
    stream, maker, evaluation = make_data(settings, prepared, objective, World())
    mean = float(evaluation.examples.lengths().mean())
    settings = replace(settings, batch_size=automatic_batch_size(settings.device, mean))
    row, building = one_core(stream, maker, settings.batch_size, seconds / 3)
    return row | steps(settings, prepared, objective, stream, maker, building, seconds * 2 / 3)


def one_core(stream, maker, batch_size: int, seconds: float) -> tuple[dict, float]:
    """Tokens a second on one core, and the share of the time that goes into building pairs."""
    rates, shares = [], []
    with pinned():
        one_buffer(stream, maker, batch_size, epoch=0)
        began = time.monotonic()
        while not rates or time.monotonic() - began < seconds:
            tokens, taken, building = one_buffer(stream, maker, batch_size, epoch=1 + len(rates))
            rates.append(tokens / taken)
            shares.append(building / taken)
    share = statistics.median(shares)
    row = {
        "rate": f"{statistics.median(rates):,.0f}",
        "spread": f"{min(rates):,.0f} - {max(rates):,.0f}",
        "pairs": f"{share:.0%}",
        "buffers": len(rates),
    }
    return row, share


def one_buffer(stream, maker, batch_size: int, epoch: int) -> tuple[int, float, float]:
    """Tokens, seconds, and seconds until the first batch is drawn, of the first buffer of an epoch."""
    from data_prep.errors import UserError
    from pretrain.engine.batches import Batches, Position
    from pretrain.engine.distributed import World

    batches = Batches(stream, maker, batch_size, Position(epoch=epoch), World())
    tokens = 0
    began = now = time.perf_counter()
    batches.draw(progress=PROGRESS)
    building = time.perf_counter() - began
    # The draw that goes beyond the buffer builds the next one, and belongs to that.
    while (batches.position.epoch, batches.position.buffer) == (epoch, 0):
        batches.micro_batches()
        tokens += batches.num_tokens
        now = time.perf_counter()
        batches.draw(progress=PROGRESS)
    if not tokens:
        raise UserError(f"the corpus has fewer than the {batch_size} examples of a batch: give a larger one")
    return tokens, now - began, building


@contextmanager
def pinned() -> Iterator[None]:
    """One thread, on one core where the system allows it; put back at the end."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cores:
        os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if cores:
            os.sched_setaffinity(0, cores)


def steps(settings, prepared, objective, stream, maker, building: float, seconds: float) -> dict:
    """Real training steps, and what of them is waiting for data."""
    from one_step import Steps

    from pretrain.build import make_model
    from pretrain.engine.batches import Position
    from pretrain.engine.distributed import World
    from pretrain.engine.step import Learner

    model = make_model(settings, prepared, objective)
    objective.freeze_unused(model)
    settings = replace(settings, budget="1000000steps")
    learner = Learner(settings, model, objective, seed=1)
    batches = timed_batches(stream, maker, settings.batch_size, Position(), World())
    steps_taken = Steps(settings, learner, batches, PROGRESS)
    for _ in range(WARM_UP):
        steps_taken.take()
    taken, waited, tokens = [], [], []
    began = time.monotonic()
    while not taken or time.monotonic() - began < seconds:
        batches.waited = 0.0
        taken.append(steps_taken.take())
        waited.append(batches.waited)
        tokens.append(batches.num_tokens)
    # The first draw of the run, which built the pairs of a buffer, was in the warm-up.
    wait = statistics.median(waited) / (1 - building)
    step = statistics.median(taken) + wait - statistics.median(waited)
    return {
        "batch": f"{statistics.mean(tokens):,.0f}",
        "step": f"{1000 * step:.1f}",
        "wait": f"{1000 * wait:.2f}",
        "share": f"{wait / step:.2%}",
        "steps": len(taken),
    }


def timed_batches(*arguments):
    """`pretrain.engine.batches.Batches` with a clock: `waited` grows by the seconds in which its caller waits."""
    from pretrain.engine.batches import Batches

    class TimedBatches(Batches):
        waited = 0.0

        def draw(self, step: int = 0, progress: float = 0.0) -> None:
            began = time.perf_counter()
            super().draw(step, progress)
            self.waited += time.perf_counter() - began

        def micro_batches(self) -> list:
            began = time.perf_counter()
            found = super().micro_batches()
            self.waited += time.perf_counter() - began
            return found

    return TimedBatches(*arguments)


if __name__ == "__main__":
    sys.exit(main())
