"""How many real tokens a second a training step takes: ours beside `BertForPreTraining` of transformers.

    python benchmarks/step.py --prepared FOLDER [--sizes 4x256,4x512,12x768] [--lengths 128,512]

12 minutes, on the CPU. A step is forward, backward, clipping and optimizer. Ours is `pretrain.engine.step` with the
settings that the product chooses; the peer is set up as benchmarks/peers.py says. The examples of a prepared corpus
are drawn and masked before the clock starts: 15 % of the tokens, scored over the whole vocabulary. Both sides train on
the same ones from the same weights (checked: losses and first steps agree), in one process with the same threads and
settings of torch, in blocks of steps that alternate. Tokens are real ones, never padding. The peer computes in the way
that is fastest here, which is named: its attention, and into how many groups of similar lengths it divides a batch.
Rates are medians of the blocks ± half their range; the ratio is that of the medians.

Useful FLOPs are the matrix products that BERT needs for these tokens (`model.flops_per_token`), not the optimizer's.
Beside them stands the FLOP-weighted mean rate of bare products of the same shapes (benchmarks/matmul.py), measured
between the blocks.
"""

import re
import statistics
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

# Arranges the memory of the process as in a real run, which has to come before torch.
import pretrain  # noqa: F401

# isort: split
from peers import NEEDS, is_installed, padded
from sides import (
    DIVISIONS,
    PACKAGES,
    SOURCES,
    Corpus,
    alternate,
    check_same,
    fastest_way,
    new_model,
    our_learner,
    spread,
)
from table import Table, code, machine, parser
from torch.profiler import ProfilerActivity, profile

from data_prep.errors import UserError
from data_prep.prepared import PreparedCorpus
from pretrain.engine.step import step

COLUMNS = {
    "": "layers x width, length",
    "tokens": "tokens a step",
    "ours": "ours, tokens/s",
    "peer": "transformers, tokens/s",
    "ratio": "ratio",
    "useful": "ours, useful GFLOP/s",
    "limit": "bare products, GFLOP/s",
    "share": "share",
    "way": "transformers' fastest way",
    "blocks": "blocks",
}


def main() -> int:
    made = parser(__doc__, minutes=12)
    made.add_argument("--prepared", type=Path, required=True, help="a prepared corpus (python -m data_prep.run)")
    made.add_argument(
        "--sizes", type=sizes, default="4x256,4x512,12x768", help="layers x width, ... (default: %(default)s)"
    )
    made.add_argument("--lengths", default="128,512", help="sequence lengths (default: %(default)s)")
    made.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw",
                      help="of our side; transformers keeps AdamW (default: adamw)")  # fmt: skip
    made.add_argument("--tokens", type=int, help="of an optimizer step, about (default: as the product chooses)")
    made.add_argument("--vocab-size", type=int, help="of the model, where larger than the corpus's (default: that)")
    made.add_argument("--peer-head", choices=("masked-rows", "all-rows"), default="masked-rows",
                      help="its MLM head runs on the masked rows alone, or on all, as in the forward of "
                      "BertForPreTraining (default: masked-rows)")  # fmt: skip
    made.add_argument("--profile", action="store_true",
                      help="measure nothing: print what our step spends its time on")  # fmt: skip
    given = made.parse_args()
    if not given.profile and not is_installed():
        return fail(NEEDS)
    if given.quick and given.tokens is None:
        given.tokens = 400
    cases = [(size, int(length)) for size in given.sizes for length in given.lengths.split(",")]
    seconds = given.minutes * 60 / len(cases) / (10 if given.quick else 1)
    try:
        if given.profile:
            print_profiles(given, cases)
        else:
            print_table(given, cases, seconds)
    except UserError as error:
        return fail(str(error))
    return 0


def sizes(words: str) -> list[str]:
    """Layers x width with commas between."""
    if not re.fullmatch(r"\d+x\d+(,\d+x\d+)*", words):
        raise ValueError
    return words.split(",")


def fail(reason: str) -> int:
    """Say in a sentence why there is no table; the exit code."""
    print(f"{Path(sys.argv[0]).name}: {reason}", file=sys.stderr)
    return 2


def print_table(given: Namespace, cases: list[tuple[str, int]], seconds: float) -> None:
    """Measure what is not there yet."""
    facts = {name: getattr(given, name) for name in ("tokens", "vocab_size", "peer_head", "quick")}
    corpus = PreparedCorpus(given.prepared).digest
    facts |= {"machine": machine(), "prepared": corpus, "code": code(*SOURCES, packages=PACKAGES)}
    table = Table(given.results / "step.jsonl", facts)
    for size, length in cases:
        name = f"{size}, {length}" + (", ours with Muon" if given.optimizer == "muon" else "")
        row = table.row(name, partial(measure, given, size, length, seconds))
        print(f"{name}: {row['ours']} against {row['peer']} tokens/s", file=sys.stderr)
    print(f"\n{machine()}\n\n{table.markdown(COLUMNS)}")


def print_profiles(given: Namespace, cases: list[tuple[str, int]]) -> None:
    """Of each case the operators of our step, and the tensors that it copies, with their shares of its time."""
    for size, length in cases:
        corpus = Corpus(given.prepared, length, given.optimizer, "cpu", given.tokens)
        config = corpus.config(size, given.vocab_size)
        learner = our_learner(corpus, corpus.settings_for(config), new_model(config))
        for drawn in corpus.drawn:
            step(learner, drawn)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
            for drawn in corpus.drawn:
                step(learner, drawn)
        copies = [row for row in found.key_averages(group_by_input_shape=True) if row.key == "aten::copy_"]
        print(f"\n{size}, {length}: {machine()}\n")
        print(found.key_averages().table("self_cpu_time_total", row_limit=20))
        total = sum(row.self_cpu_time_total for row in found.key_averages())
        for row in sorted(copies, key=lambda row: -row.self_cpu_time_total)[:10]:
            print(f"{row.self_cpu_time_total / total:6.1%}  {row.count:6,} copies of {row.input_shapes[0]}")


def measure(given: Namespace, size: str, length: int, seconds: float) -> dict:
    """One row of the table."""
    until = time.perf_counter() + seconds
    corpus = Corpus(given.prepared, length, given.optimizer, "cpu", given.tokens)
    config = corpus.config(size, given.vocab_size)
    settings, model = corpus.settings_for(config), new_model(config)
    peer, kind, groups = fastest_way(corpus, model, settings=settings, masked_rows=given.peer_head == "masked-rows")
    learner = our_learner(corpus, settings, model)
    check_same(corpus, learner, peer)
    theirs = [padded(drawn.parts, groups) for drawn in corpus.drawn]
    bare, limits = corpus.matmul_rate(config, min(2.0, seconds / 60)), []
    sides = {
        "ours": lambda number: step(learner, corpus.drawn[number]),
        "peer": lambda number: peer.step(theirs[number]),
    }
    rates = alternate(corpus, sides, until, between=lambda: limits.append(bare()))
    ours, peers, limit = (statistics.median(values) for values in (rates["ours"], rates["peer"], limits))
    useful = ours * corpus.useful_flops(config)
    return {
        "tokens": f"{statistics.mean(drawn.num_tokens for drawn in corpus.drawn):,.0f}",
        "ours": spread(rates["ours"]),
        "peer": spread(rates["peer"]),
        "ratio": f"{ours / peers:.2f}",
        "useful": f"{useful / 1e9:,.0f}",
        "limit": f"{limit / 1e9:,.0f}",
        "share": f"{useful / limit:.0%}",
        "way": f"{kind}, {DIVISIONS[groups]}",
        "blocks": len(limits),
    }


if __name__ == "__main__":
    sys.exit(main())
