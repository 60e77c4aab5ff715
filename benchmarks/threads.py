"""How training shares the cores: tokens a second alone and beside another program, by threads and how they wait.

    python benchmarks/threads.py --prepared prepared --preset micro

A thread that waits for another one can spin, which keeps its core busy, or sleep, which takes time to wake from: much
of it on some virtual machines. Each setting is a process of its own, as libgomp reads GOMP_SPINCOUNT when it is loaded;
the last one changes its threads as a run with a budget of time does. The processes take turns of a few seconds, first
alone, then beside one process that keeps one core busy; medians over the rounds are printed.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path

from table import machine, parser, run

from pretrain.engine.device import default_threads

SECONDS = 4.0
# Turns of a waiting loop; the last is libgomp's own choice while there is a core for each thread.
SPINS = (0, 300, 1_000, 10_000, 100_000, 300_000)


def main() -> int:
    made = parser(__doc__, minutes=12, keeps_rows=False)
    made.add_argument("--prepared", type=Path, required=True, help="folder that data_prep wrote")
    made.add_argument("--preset", default="micro", help="model size (default: micro)")
    made.add_argument("--batch-size", type=int, default=64, help="default: 64")
    made.add_argument("--child", action="store_true", help="used by the benchmark itself")
    made.add_argument("--budget", help="used by the benchmark itself")
    given = made.parse_args()
    if given.child:
        serve(given)
        return 0
    threads = default_threads()
    settings = {"1 thread": (1, SPINS[-1], False)}
    settings |= {f"{threads} threads, spin {spin:,}": (threads, spin, False) for spin in SPINS}
    settings["as many as are fastest"] = (threads, SPINS[-1], True)
    minutes = given.minutes / 10 if given.quick else given.minutes
    rounds = max(1, round(60 * minutes / (2 * len(settings) * SECONDS)))
    children = {name: start(given, *setting) for name, setting in settings.items()}
    alone = measure(children, rounds)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = measure(children, rounds)
    finally:
        busy.kill()
    for child in children.values():
        child.stdin.close()
    print(f"{given.preset}, {given.batch_size} examples a step, {rounds} rounds; {machine()}\n")
    print("| | alone | beside a busy process | share of the best alone | of one thread beside it |")
    print("|---|---|---|---|---|")
    best, single = max(alone.values()), beside["1 thread"]
    for name in settings:
        print(f"| {name} | {alone[name]:,.0f} | {beside[name]:,.0f} | {alone[name] / best:.2f} "
              f"| {beside[name] / single:.2f} |")  # fmt: skip
    return 0


def start(given: Namespace, threads: int, spin: int, may_change: bool) -> subprocess.Popen:
    """A process that trains for as many seconds as it is told, line by line, and answers with its tokens a second."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": str(spin)}
    command = [sys.executable, __file__, "--child", "--prepared", given.prepared, "--preset", given.preset]
    command += ["--batch-size", str(given.batch_size), "--budget", "1h" if may_change else "1000000steps"]
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer(child)
    return child


def answer(child: subprocess.Popen) -> float | str:
    """The next thing that a process says; one that has ended ends the benchmark."""
    if not (line := child.stdout.readline()):
        raise SystemExit(f"threads.py: a process of it ended with exit code {child.wait()}: see its output above")
    return json.loads(line)


def measure(children: dict[str, subprocess.Popen], rounds: int) -> dict[str, float]:
    """The median rate of each, in turns whose order changes."""
    rates: dict[str, list[float]] = {name: [] for name in children}
    for number in range(rounds):
        for name in list(children)[:: 1 if number % 2 else -1]:
            children[name].stdin.write(f"{SECONDS}\n")
            children[name].stdin.flush()
            rates[name].append(answer(children[name]))
    return {name: statistics.median(found) for name, found in rates.items()}


def serve(given: Namespace) -> None:
    """A run that trains on request."""
    import torch

    from data_prep.prepared import PreparedCorpus
    from pretrain.build import make_data, make_model
    from pretrain.engine.batches import Batches, Position
    from pretrain.engine.distributed import World
    from pretrain.engine.loop import timed_step
    from pretrain.engine.settings import Budget
    from pretrain.engine.step import Learner
    from pretrain.engine.threads import Threads
    from pretrain.objectives import make_objective
    from pretrain.resolve import resolve
    from pretrain.settings import PretrainSettings

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    given_settings = PretrainSettings(
        prepared=str(given.prepared), preset=given.preset, batch_size=given.batch_size, budget=given.budget
    )
    prepared = PreparedCorpus(given.prepared, verify=False)
    with redirect_stdout(sys.stderr):
        settings = resolve(given_settings)
        objective = make_objective(settings, prepared)
    stream, maker, _ = make_data(settings, prepared, objective, World())
    learner = Learner(settings, make_model(settings, prepared, objective), objective, settings.examples.seed)
    learner.optimizer.set_learning_rate(1e-5)
    batches = Batches(stream, maker, settings.batch_size, Position(), World())
    threads = Threads(torch.get_num_threads(), may_change=not Budget.parse(settings.budget).is_counted)

    def train(seconds: float) -> float:
        began, tokens = time.perf_counter(), learner.counters.tokens
        # As at the beginning of a run: what the cores did in the turns of others is left out.
        with threads:
            while time.perf_counter() - began < seconds:
                timed_step(learner, batches, threads, progress=0.5)
        return (learner.counters.tokens - tokens) / (time.perf_counter() - began)

    train(1.0)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(train(float(line))), flush=True)


if __name__ == "__main__":
    sys.exit(run(main))
