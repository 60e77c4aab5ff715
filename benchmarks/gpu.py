"""One command for a CUDA machine: how fast BERT-base and BERT-large train on it, and in how much memory.

    python benchmarks/gpu.py --prepared FOLDER [--learning-minutes 5]

8 minutes, and about as long again for compiling. The sides of benchmarks/step.py, in the same alternating blocks:

  ours                     packed batches, attention by the kernel for packed sequences (varlen) where the GPU has it
  ours, padded             the same, attention by SDPA on a padded rectangle
  ours, compiled           the first with `--compile layers`
  transformers             BertForPreTraining as benchmarks/peers.py sets it up, its best division of a batch
  transformers, compiled   the same through torch.compile, for any length

Tokens are real ones. Utilisation is useful FLOPs (`model.flops_per_token`) over the device's peak for dense bf16 from
its data sheet, or over the rate of one large product measured here where this file has none; beside it the share of the
rate that bare products of the same shapes reach. Memory is the most that weights, optimizer and a step of one side had
allocated. With --learning-minutes, benchmarks/learning.py trains base afterwards.

`--device cpu --presets tiny --quick` tries the command where there is no GPU: the table names the processor, instead of
varlen the first side takes what "auto" takes there, and memory stays empty.
"""

import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

# Arranges the memory of the process as in a real run, which has to come before torch.
import pretrain  # noqa: F401

# isort: split
import torch
from matmul import best_rate
from peers import NEEDS, TransformersTraining, is_installed, padded
from sides import (
    PACKAGES,
    SOURCES,
    Corpus,
    alternate,
    check_near,
    check_same,
    fastest_way,
    new_model,
    our_learner,
    spread,
)
from table import Table, code, machine, markdown, parser

from data_prep.errors import UserError
from data_prep.prepared import PreparedCorpus
from model import PRESETS, BertConfig
from pretrain.engine.compilation import compile_layers
from pretrain.engine.counters import Outcome
from pretrain.engine.device import DTYPES
from pretrain.engine.step import rehearse, step

# Dense bf16 FLOPs a second by the name that the driver gives; the first that fits counts.
PEAKS = {
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
}
VARIANTS = ("ours", "ours, padded", "ours, compiled", "transformers", "transformers, compiled")
# Steps before the clock starts, in which caches fill and layers compile, and steps whose memory is looked at.
WARM_UP, LOOKED_AT = 3, 4
COLUMNS = {
    "": "model, length, side",
    "tokens": "tokens a step",
    "rate": "tokens/s",
    "ratio": "over transformers",
    "useful": "useful TFLOP/s",
    "utilisation": "utilisation",
    "share": "of bare products",
    "memory": "memory, GB",
    "first": "first steps, s",
}


def main() -> int:
    made = parser(__doc__, minutes=8)
    made.add_argument("--prepared", type=Path, required=True, help="a prepared corpus (python -m data_prep.run)")
    made.add_argument("--presets", default="base,large", help=f"of {', '.join(PRESETS)} (default: %(default)s)")
    made.add_argument("--lengths", default="128,512", help="sequence lengths (default: %(default)s)")
    made.add_argument("--tokens", type=int, help="of an optimizer step, about (default: as the product chooses)")
    made.add_argument("--vocab-size", type=int, default=30_522, help="of the models (default: %(default)s)")
    made.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="of ours (default: adamw)")
    made.add_argument("--without", default="", metavar="SIDES", help='sides to leave out, such as "compiled"')
    made.add_argument("--learning-minutes", type=float, default=0, help="minutes a run of learning.py (default: none)")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the command")
    given = made.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        return fail("this machine has no CUDA device (--device cpu --presets tiny --quick tries the command without)")
    if not is_installed():
        return fail(NEEDS)
    if unknown := set(given.presets.split(",")) - PRESETS.keys():
        return fail(f"--presets: {min(unknown)} is none of {', '.join(PRESETS)}")
    try:
        print_table(given)
    except UserError as error:
        return fail(str(error))
    return learn(given) if given.learning_minutes else 0


def fail(reason: str) -> int:
    """Say in a sentence why there is no table; the exit code."""
    print(f"gpu.py: {reason}", file=sys.stderr)
    return 2


def print_table(given: Namespace) -> None:
    """Measure what is not there yet; the sides of a model and length are measured together."""
    cases = [(preset, int(length)) for preset in given.presets.split(",") for length in given.lengths.split(",")]
    seconds = given.minutes * 60 / len(cases) / (10 if given.quick else 1)
    facts = {name: getattr(given, name) for name in ("tokens", "vocab_size", "optimizer", "quick")}
    here, corpus = machine(given.device), PreparedCorpus(given.prepared).digest
    facts |= {"machine": here, "prepared": corpus, "sides": chosen(given), "code": code(*SOURCES, packages=PACKAGES)}
    table, rows = Table(given.results / "gpu.jsonl", facts), {}
    for preset, length in cases:
        case = f"{preset}, {length}"
        for side, row in table.row(case, partial(measure, given, preset, length, seconds)).items():
            rows[f"{case}, {side}"] = row
            print(f"{case}, {side}: {row['rate']} tokens/s", file=sys.stderr)
    print(f"\n{here}\n\n{markdown(rows, COLUMNS)}")


def chosen(given: Namespace) -> list[str]:
    """The sides that were not left out."""
    left_out = [name.strip() for name in given.without.split(",") if name.strip()]
    return [name for name in VARIANTS if name in ("ours", "transformers") or not any(n in name for n in left_out)]


@dataclass
class Side:
    """One of the sides: takes a step on the global batch of a number."""

    take: Callable[[int], object]
    first_seconds: float
    """Of the steps before the clock starts, compilation included."""
    memory: int = 0
    """Bytes that its weights and optimizer hold, and then the most that it had allocated in a step."""


class Sides:
    """All sides of one model and length, built from the same weights and checked against each other."""

    def __init__(self, given: Namespace, preset: str, length: int):
        self.given, self.sides = given, {}
        self.corpus = Corpus(given.prepared, length, given.optimizer, given.device, given.tokens)
        self.config: BertConfig = self.corpus.config("x".join(map(str, PRESETS[preset])), given.vocab_size)
        self.settings = self.corpus.settings_for(self.config)
        self.first, self.attention, self.groups = self._check()
        for name in chosen(given):
            self._add(name)

    def _check(self) -> tuple[tuple[dict, float], str, int]:
        """The first step of ours, if it is that of the peer; the peer's fastest attention and division of a batch."""
        model = new_model(self.config)
        peer, attention, groups = fastest_way(self.corpus, model, settings=self.settings)
        return check_same(self.corpus, our_learner(self.corpus, self.settings, model), peer), attention, groups

    def _add(self, name: str) -> None:
        before, began = allocated(self.given.device), time.perf_counter()
        take = self._theirs(name) if name.startswith("transformers") else self._ours(name)
        check_near(self.first, numbers_of(take(0)))
        for number in range(1, WARM_UP):
            take(number)
        side = Side(take, time.perf_counter() - began, allocated(self.given.device) - before)
        side.memory += most_allocated(take, self.given.device)
        self.sides[name] = side

    def _ours(self, name: str) -> Callable[[int], object]:
        model = new_model(self.config)
        model.attention_implementation = "sdpa" if "padded" in name else "auto"
        learner = our_learner(self.corpus, self.settings, model)
        if "compiled" in name:
            obstacle = compile_layers(model, partial(rehearse, learner, self.corpus.drawn[0].micro_batches()[0]))
            if obstacle:
                raise UserError(f"the layers cannot be compiled here: {obstacle}")
        return lambda number: step(learner, self.corpus.drawn[number])

    def _theirs(self, name: str) -> Callable[[int], object]:
        model = new_model(self.config)
        peer = TransformersTraining(model, self.settings, self.attention, compiled="compiled" in name)
        batches = [padded(drawn.parts, self.groups) for drawn in self.corpus.drawn]
        return lambda number: peer.step(batches[number])


def numbers_of(taken: Outcome | tuple[dict, float]) -> tuple[dict, float]:
    """Losses and gradient norm of a step of ours, for which this waits, or of the peer's."""
    return (taken.losses, taken.norm) if isinstance(taken, Outcome) else taken


def allocated(device: str) -> int:
    """Bytes of the GPU's memory that tensors hold now."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def most_allocated(take: Callable[[int], object], device: str) -> int:
    """Bytes that a step allocates on top of what is there before it."""
    if device != "cuda":
        return 0
    before = allocated(device)
    torch.cuda.reset_peak_memory_stats()
    for number in range(LOOKED_AT):
        take(number)
    return torch.cuda.max_memory_allocated() - before


def measure(given: Namespace, preset: str, length: int, seconds: float) -> dict[str, dict]:
    """The rows of one model and length, by side."""
    until = time.perf_counter() + seconds
    made = Sides(given, preset, length)
    corpus, config, limits = made.corpus, made.config, []
    bare = corpus.matmul_rate(config, 0.5)
    # Setting up may have taken it all.
    until = max(until, time.perf_counter() + seconds / 4)
    takes = {name: side.take for name, side in made.sides.items()}
    rates = alternate(corpus, takes, until, between=lambda: limits.append(bare()))
    limit, peer = statistics.median(limits), statistics.median(rates["transformers"])
    peak, flops = device_peak(given.device, DTYPES[made.settings.precision]), corpus.useful_flops(config)
    rows = {}
    for name, side in made.sides.items():
        median = statistics.median(rates[name])
        rows[name] = {
            "tokens": f"{statistics.mean(drawn.num_tokens for drawn in corpus.drawn):,.0f}",
            "rate": spread(rates[name]),
            "ratio": f"{median / peer:.2f}",
            "useful": f"{median * flops / 1e12:.3g}",
            "utilisation": f"{median * flops / peak:.1%}",
            "share": f"{median * flops / limit:.0%}",
            "memory": f"{side.memory / 1e9:.2f}" if side.memory else "",
            "first": f"{side.first_seconds:.1f}",
        }
    return rows


@cache
def device_peak(device: str, dtype: torch.dtype) -> float:
    """FLOPs a second of the device, in dense products of this type."""
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    known = [peak for part, peak in PEAKS.items() if part in name and dtype != torch.float32]
    return known[0] if known else best_rate(dtype, device)


def learn(given: Namespace) -> int:
    """The comparison of what is learned, for base, in a process of its own; its exit code."""
    script = Path(__file__).with_name("learning.py")
    if not script.exists():
        return fail(f"{script} is not there, so nothing was learned; the table above is complete")
    options = {"--prepared": given.prepared, "--minutes-per-run": given.learning_minutes,
               "--preset": "base" if given.device == "cuda" else given.presets.split(",")[0],
               "--device": given.device, "--results": given.results}  # fmt: skip
    command = [sys.executable, str(script), *(str(part) for option in options.items() for part in option)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
