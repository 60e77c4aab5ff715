"""What is learned in the same minutes: held-out MLM loss and accuracy and NSP accuracy of our default recipe, of ours
with something changed, and of transformers.

    python benchmarks/learning.py --prepared prepared --minutes-per-run 10 --seeds 3
    python benchmarks/learning.py --prepared prepared --steps-per-run 1000 --threads 1 --seeds 3 --peers \\
        --variants "lr 2e-3=--learning-rate 2e-3" "small=--preset small"

A variant is a name and the arguments of `python -m pretrain.run` that differ from the default; it is compared with the
default on the same seeds, in turns. `--recipes` tells recipe from implementation: each program with the recipe of the
other, and ours with the scores of all entries, as transformers computes them. The runs follow one another, each in a
process of its own; a run takes its minutes and about half as much again for evaluations and start (the default and
three learning rates of transformers, ten minutes each: an hour; with `--seeds 3 --recipes` four). Equal steps with a
number of threads repeat to the bit, whatever else the machine does. Finished rows are kept and not run again for this
very source code.

Fair: the same prepared corpus and the same frozen held-out examples, pairs and masks for all, also for a variant of
another length or masking, scored by one piece of code in one precision. The clock runs from the first batch and stands
still in evaluations (see timed_training.py); how transformers is set up is said in peer_training.py. The points of a
curve are from the first 500 examples, the result from 4,000. Losses of another vocabulary (a variant that names its own
--prepared) compare as nats a character of the masked pieces only.
"""

import math
import shlex
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path

# Arranges the memory of the process as in a real run, which has to come before torch.
import pretrain  # noqa: F401

# isort: split
from learning_report import COLUMNS, DEFAULT, PEER, SEED, draw, findings
from table import Table, code, machine, parser
from timed_training import Terms, ours

from data_prep.console import command_line
from data_prep.errors import UserError
from data_prep.prepared import PreparedCorpus
from pretrain.engine.folder import whole_folder
from pretrain.resolve import resolve, with_preset
from pretrain.settings import PretrainSettings

MINUTES, QUICK_MINUTES = 10.0, 0.2


def options() -> ArgumentParser:
    made = parser(__doc__, minutes=None)
    made.add_argument("--minutes", type=float, help="time for all runs together, in place of --minutes-per-run")
    made.add_argument("--prepared", type=Path, required=True, help="folder that data_prep wrote")
    made.add_argument("--minutes-per-run", type=float, default=MINUTES, help=f"default: {MINUTES:g}")
    made.add_argument("--steps-per-run", type=int, help="equal steps in place of equal minutes")
    made.add_argument("--threads", type=int, help="of all runs (default: as the product has it)")
    made.add_argument("--seeds", type=int, default=1, help="of the default and of each variant (default: 1)")
    made.add_argument("--variants", nargs="*", default=[], metavar="NAME=ARGS", help="what differs from the default")
    made.add_argument("--preset", default="auto", help="model size of our runs (default: what the product takes)")
    made.add_argument("--sequence-length", type=int, default=128, help="default: 128")
    made.add_argument("--peers", nargs="*", type=float, default=[3e-4, 1e-3, 3e-3], metavar="RATE",
                      help="learning rates of transformers, and more beyond the best while it is at their edge; the "
                      "best one gets all seeds (default: 3e-4 1e-3 3e-3; no value: none)")  # fmt: skip
    made.add_argument("--peer-batch-size", type=int, default=64, help="default: 64")
    made.add_argument("--recipes", action="store_true", help="also transformers with our recipe, and ours with its")
    made.add_argument("--device", default="auto", help="default: cuda, else cpu")
    made.add_argument("--points", type=int, default=10, help="evaluations a run (default: 10)")
    made.add_argument("--examples", type=int, default=4_000, help="held-out examples of the result (default: 4000)")
    made.add_argument("--picture", type=Path, help="default: learning.png beside the results")
    return made


def main() -> int:
    given = options().parse_args()
    try:
        if given.peers and not find_spec("transformers"):
            raise UserError("transformers is not installed: pip install 'transformers>=5', or --peers with no value")
        bench = Bench(given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    are_done = bench.run()
    if bench.table.rows:
        picture = given.picture or given.results / "learning.png"
        draw(bench.table.rows, picture)
        print(bench.title, bench.table.markdown(COLUMNS), "\n".join(findings(bench.table.rows)), sep="\n\n")
        print(f"\nThe curves are in {picture}.")
    return 0 if are_done else 1


class Bench:
    """The runs that a command line asks for, and the table of their rows and of earlier ones on the same terms.

    Raises:
        UserError: an argument cannot be used.
    """

    def __init__(self, given: Namespace):
        corpus, variants = PreparedCorpus(given.prepared), dict(text.partition("=")[::2] for text in given.variants)
        rows = given.seeds * (1 + len(variants)) + len(given.peers)
        if given.peers:
            rows += given.seeds - 1 + 3 * given.seeds * given.recipes
        minutes = given.minutes / max(1, rows) if given.minutes else given.minutes_per_run
        minutes = QUICK_MINUTES if given.quick else minutes
        self.terms = terms = terms_of(given, minutes)
        amount = terms.budget if given.steps_per_run else f"{minutes:g} minutes"
        if given.peers and not corpus.next_sentence:
            raise UserError(f"{given.prepared} has no sentence pairs to train transformers on: --peers with no value")
        if missing := [name for name, arguments in variants.items() if not arguments]:
            raise UserError(f"--variants {missing[0]!r} has no arguments: write 'NAME=--option value'")
        if given.recipes and not given.peers:
            raise UserError("--recipes needs the learning rates of transformers: leave --peers out, or give it some")
        self.given, self.corpus = given, corpus
        size = corpus.manifest["train"]["tokens"], corpus.tokenizer.vocab_size
        given.preset = with_preset(resolve(our_settings(given, terms, [])), *size).preset
        self.ours = our_runs(given, terms, variants)
        on = machine(terms.settings(given.prepared).device)
        self.title = (
            f"{amount} a run on {corpus.manifest['train']['tokens']:,} tokens, vocabulary "
            f"{corpus.tokenizer.vocab_size:,}, {terms.examples:,} held-out examples; {on}"
        )
        facts = {
            "prepared": corpus.digest,
            "on": on,
            "preset": given.preset,
            "threads": given.threads,
            "code": sources(),
        }
        self.table = Table(given.results / "learning.jsonl", facts | vars(terms))

    def run(self) -> bool:
        """Every run that has no row; whether all succeeded."""
        are_done = True
        for name, train in self.wanted():
            if name in self.table.rows:
                continue
            print(f"{name} ({self.terms.budget} and evaluations)", file=sys.stderr, flush=True)
            try:
                self.table.row(name, partial(alone, train))
            except (UserError, BrokenProcessPool) as error:
                print(f"{name} has no result: {error}", file=sys.stderr, flush=True)
                are_done = False
        return are_done

    def wanted(self) -> Iterator[tuple[str, Callable[[], dict]]]:
        """All runs by the names of their rows; which rate of transformers gets all seeds is known behind the first."""
        yield from self.ours.items()
        rates, losses = list(self.given.peers), {}
        for rate in rates:
            yield self._peer(rate, 1)
            if row := self.table.rows.get(self._peer(rate, 1)[0]):
                losses[rate] = row["mlm_loss"]
            further = beyond_the_best(losses)
            if rate == rates[-1] and further not in (None, *rates):
                rates.append(further)
        if not losses:
            return
        best = best_rate(losses)
        for seed in range(1, self.given.seeds + 1):
            yield self._peer(best, seed)
            if self.given.recipes:
                same = f"{SEED}{seed}"
                # Our batch size is chosen in the run; transformers has no sampled softmax.
                default = self.table.rows.get(f"{DEFAULT}{seed}")
                size = default["settings"]["batch_size"] if default else self.given.peer_batch_size
                settings = self._settings([f"--batch-size={size}", "--softmax=full"], seed)
                yield f"{PEER}with our recipe, all scores{same}", partial(train_peer, settings, self.terms)
                yield f"ours with all scores{same}", partial(ours, settings, self.terms)
                name, _ = self._peer(best, seed)
                theirs = self._settings(self._recipe_of_peer(best, seed), seed)
                yield f"ours with the recipe of {name}", partial(ours, theirs, self.terms)

    def _peer(self, rate: float, seed: int) -> tuple[str, Callable[[], dict]]:
        """A run of transformers with its own recipe."""
        settings = self._settings(self._recipe_of_peer(rate, seed), seed)
        name = f"{PEER}batch {self.given.peer_batch_size}, {rate:g}{SEED}{seed}"
        return name, partial(train_peer, settings, self.terms)

    def _recipe_of_peer(self, rate: float, seed: int) -> list[str]:
        """As arguments of `python -m pretrain.run`, from a model that transformers drew."""
        from peer_training import RECIPE, save_plain_start

        settings = resolve(self._settings([], seed))
        name = f"plain-{settings.preset}-{self.terms.sequence_length}-{self.corpus.digest[:8]}-{seed}"
        start = (self.given.results / name).absolute()
        if not start.exists():
            with whole_folder(start, 0) as folder:
                save_plain_start(settings, self.corpus.tokenizer, folder)
        return [
            *RECIPE,
            f"--learning-rate={rate:g}",
            f"--batch-size={self.given.peer_batch_size}",
            f"--init-from={start}",
        ]

    def _settings(self, arguments: list[str], seed: int) -> PretrainSettings:
        return our_settings(self.given, self.terms, [*arguments, f"--seed={seed}"])


def best_rate(losses: dict[float, float]) -> float:
    """The one of the least loss; NaN is none."""
    return min(losses, key=lambda rate: (math.isnan(losses[rate]), losses[rate]))


def beyond_the_best(losses: dict[float, float]) -> float | None:
    """Three times the best rate, or a third of it, where it is at the edge of those that were tried; None where it is
    inside, or the only one."""
    if len(losses) < 2 or (best := best_rate(losses)) not in (min(losses), max(losses)):
        return None
    return float(f"{best * (3 if best == max(losses) else 1 / 3):.3g}")


def terms_of(given: Namespace, minutes: float) -> Terms:
    points, examples = (3, 200) if given.quick else (given.points, given.examples)
    budget = f"{given.steps_per_run}steps" if given.steps_per_run else f"{60 * minutes:.3f}s"
    return Terms(budget, given.device, given.sequence_length, points, min(500, examples), examples)


def our_runs(given: Namespace, terms: Terms, variants: dict[str, str]) -> dict[str, Callable[[], dict]]:
    """Our runs by the names of their rows: seed by seed, the default and the variants."""
    wanted = {}
    for seed in range(1, given.seeds + 1):
        wanted[f"{DEFAULT}{seed}"] = ["--seed", str(seed)]
        for name, arguments in variants.items():
            wanted[f"{name}: {arguments}, seed {seed}"] = [*shlex.split(arguments), "--seed", str(seed)]
    runs = {}
    for name, arguments in wanted.items():
        settings = our_settings(given, terms, arguments)
        resolve(settings)  # complains now, not after the runs before it
        runs[name] = partial(ours, settings, terms)
    return runs


def our_settings(given: Namespace, terms: Terms, arguments: list[str]) -> PretrainSettings:
    """What `python -m pretrain.run` makes of these arguments behind the common ones; one with a mistake says so."""
    common = {
        "prepared": given.prepared,
        "budget": terms.budget,
        "sequence-length": given.sequence_length,
        "preset": given.preset,
        "device": given.device,
        "evaluations": terms.points,
    }
    common |= {"threads": given.threads} if given.threads else {}
    if any(argument.startswith(("--init-from", "--teacher")) for argument in arguments):
        del common["preset"]  # sizes are those of that model
    words = [f"--{option}={value}" for option, value in common.items()]
    found: list[PretrainSettings] = []
    command = {"prog": "python -m pretrain.run", "description": ""}
    if command_line.main(PretrainSettings, found.append, **command, argv=[*words, *arguments]) or not found:
        raise UserError(f"these are no arguments of python -m pretrain.run: {shlex.join(arguments)}")
    if found[0].examples.longest < terms.sequence_length:
        raise UserError(f"all are evaluated at {terms.sequence_length} tokens: {shlex.join(arguments)} is shorter")
    if found[0].budget != terms.budget:
        raise UserError(f"a variant has the same minutes as all runs: leave --budget {found[0].budget} out")
    return found[0]


def train_peer(*arguments) -> dict:
    """`peer_training.peer`; transformers may be absent where no peer is asked for."""
    from peer_training import peer

    return peer(*arguments)


def alone(train: Callable[[], dict]) -> dict:
    """A run in a fresh process, which ends with it, and with this process where that is told to end."""

    def end(*_) -> None:
        for process in active_children():
            process.kill()
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(train).result()
    finally:
        signal.signal(signal.SIGTERM, before)


def sources() -> str:
    """Changes with the version of transformers, and with the sources that rows come from."""
    installed = version("transformers") if find_spec("transformers") else "none"
    own = [f"benchmarks/{name}.py" for name in ("timed_training", "peer_training")]
    return f"{installed} {code('data_prep', 'model', 'pretrain', *own)}"


if __name__ == "__main__":
    sys.exit(main())
