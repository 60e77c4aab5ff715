"""What whole training steps ask of a GPU, found out on a machine without one.

    python benchmarks/trace_gpu.py [--presets base,large] [--lengths 128,512] [--tokens 14000] [--family albert]

Ten minutes. `pretrain.engine.step` runs with fake tensors on device "cuda": transfer, forward, losses, backward,
clipping and optimizer of one process, in two micro-batches of sequences that are nearly all full, 15 % of them masked,
without dropout. Python does what it would do on a GPU; kernels are not run, so nothing is learned about speed or
results. The table says

  attention    the function that was chosen
  operations   how many were called
  waits        how often the host waits for the GPU; where is printed below the table
  reads        how many copies to the host it asks for and goes on, to look at them a step later
  state        bytes that weights and optimizer hold between steps
  peak         the most that all tensors of a step hold at once; the gaps of the allocator, CUDA itself (about 0.5 GB)
               and the scratch memory inside kernels come on top
  computed     the same by the arithmetic of the plan that `--dry-run` prints (pretrain/gpu_memory.py)

Any build of torch will do, also one for CPUs alone (tried: 2.13 for CPUs, 2.11 and 2.14 for CUDA without a driver).
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Arranges the memory of the process as in a real run, which has to come before torch.
import pretrain  # noqa: F401

# isort: split
import numpy as np
import torch
from fake_gpu import DEVICE, Trace, fake_gpu, on_gpu

from model import PRESETS, BertConfig, attention
from model.families import FAMILIES
from pretrain.batches import PretrainingBatch
from pretrain.engine.step import Learner, step
from pretrain.gpu_memory import GpuMemory
from pretrain.objectives import bert_objective
from pretrain.resolve import peak_learning_rate
from pretrain.settings import PretrainSettings

# Precision, and a compute capability of GPUs that have it: Ampere and newer, then Turing.
ARITHMETIC = {"bf16": (8, 0), "fp16": (8, 0), "fp16 on a T4": (7, 5)}
MASKED = 0.15
HEADINGS = ("model, length", "precision", "optimizer", "attention", "operations", "waits", "reads", "state, GB",
            "peak, GB", "computed, GB")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A step that is traced."""

    preset: str
    length: int
    arithmetic: str
    optimizer: str
    tokens: int
    """At once, in each of the micro-batches of a step."""
    family: str = "bert"
    vocab_size: int = 30_522

    @property
    def precision(self) -> str:
        return self.arithmetic.split()[0]

    def config(self) -> BertConfig:
        dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        kind = FAMILIES[self.family].config
        return kind.from_preset(self.preset, self.vocab_size, max_position_embeddings=self.length, **dropout)

    def settings(self) -> PretrainSettings:
        """As the product would resolve them on that GPU, but that Muon has the matrices of the layers alone."""
        rate = peak_learning_rate(self.optimizer, self.config().hidden_size)
        return PretrainSettings(
            prepared="-", budget="10steps", device="cuda", precision=self.precision, optimizer=self.optimizer,
            learning_rate=rate, dropout=0.0,
        )  # fmt: skip


@dataclass
class Found:
    """What the trace of a step says."""

    attention: set[str]
    trace: Trace
    state: int
    tokens: int
    """Of a micro-batch."""


def batch_of(case: Case) -> PretrainingBatch:
    """Sequences of zeros, some of them masked, on the host. The last one is shorter: no full rectangle."""
    count, length = max(1, case.tokens // case.length), case.length
    each, tokens = max(1, round(MASKED * (length - 3))), count * length - 1
    starts = (torch.arange(count + 1, dtype=torch.int32) * length).clamp(max=tokens)
    places = (starts[:-1, None] + torch.arange(1, each + 1)).flatten()
    ids, columns = torch.zeros(tokens, dtype=torch.int64), torch.arange(length).repeat(count)[:tokens]
    return PretrainingBatch(
        input_ids=ids,
        token_type_ids=ids,
        position_ids=columns,
        sequence_starts=starts,
        max_sequence_length=length,
        masked_positions=places,
        masked_targets=torch.zeros_like(places),
        most_masked=each,
        pair_targets=torch.zeros(count, dtype=torch.int64),
    )


@dataclass(frozen=True)
class Drawn:
    """What `step` asks of `pretrain.engine.batches.Batches`, with the same micro-batch twice."""

    part: PretrainingBatch
    epochs = 0.0

    def micro_batches(self) -> list[PretrainingBatch]:
        return [self.part, self.part]

    @property
    def num_tokens(self) -> int:
        return 2 * self.part.num_tokens

    def identification(self) -> Callable[[], list]:
        return list

    @property
    def maker(self) -> "Drawn":
        return self

    def empty_batch(self) -> None:
        """Of use to several processes alone."""


def traced(case: Case) -> Found:
    """The second step of a run; the first one makes the state of the optimizer."""
    batch, trace = batch_of(case), Trace()
    with fake_gpu(ARITHMETIC[case.arithmetic], bf16=case.precision == "bf16"), implementations() as chosen:
        with trace:
            model = on_gpu(lambda: FAMILIES[case.family].pretraining(case.config()))
            learner = Learner(case.settings(), model, bert_objective(np.ones(model.config.vocab_size)), seed=0)
            learner.device = DEVICE
            for _ in range(2):
                trace.operations.clear()
                trace.waits.clear()
                trace.reads = 0
                trace.peak = trace.allocated
                outcome = step(learner, Drawn(batch))
                assert outcome.losses
        return Found(chosen, trace, trace.allocated, batch.num_tokens)


@contextmanager
def implementations() -> Iterator[set[str]]:
    """The functions for attention that are chosen in the block."""
    chosen: set[str] = set()
    before = attention.AttentionPlan.__init__

    def noted(self, implementation: str, *args, **kwargs) -> None:
        chosen.add(implementation)
        before(self, implementation, *args, **kwargs)

    attention.AttentionPlan.__init__ = noted
    try:
        yield chosen
    finally:
        attention.AttentionPlan.__init__ = before


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--presets", default="base,large", help=f"of {', '.join(PRESETS)} (default: %(default)s)")
    made.add_argument("--lengths", default="128,512", help="sequence lengths (default: %(default)s)")
    made.add_argument("--tokens", type=int, default=14_000, help="of each micro-batch (default: %(default)s)")
    made.add_argument("--optimizers", default="muon", help="muon,adamw for both (default: %(default)s)")
    made.add_argument("--family", default="bert", help="bert or albert (default: %(default)s)")
    given = made.parse_args()
    print(f"torch {torch.__version__}; traced with fake tensors, never run on a GPU\n")
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    places = {}
    for preset in given.presets.split(","):
        for length in map(int, given.lengths.split(",")):
            for arithmetic in ARITHMETIC:
                for optimizer in given.optimizers.split(","):
                    case = Case(preset, length, arithmetic, optimizer, given.tokens, given.family)
                    print(row(case, places), flush=True)
    print("\nWhere the host waits, times a step:\n" if places else "\nThe host waits nowhere.")
    for (what, place), count in sorted(places.items()):
        print(f"  {count}  {what}: {place}")
    return 0


def row(case: Case, places: dict) -> str:
    """A line of the table; adds to the places where the host waits."""
    found = traced(case)
    for place, count in found.trace.waits.items():
        places[place] = max(count, places.get(place, 0))
    cells = [f"{case.preset}, {case.length}", case.arithmetic, case.optimizer, ", ".join(sorted(found.attention)),
             f"{found.trace.operations.total():,}", f"{found.trace.waits.total()}",
             f"{found.trace.reads}"]  # fmt: skip
    computed = GpuMemory(case.config(), case.optimizer, case.precision, MASKED).peak(found.tokens)
    cells += [f"{size / 1e9:.2f}" for size in (found.state, found.trace.peak, computed)]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
