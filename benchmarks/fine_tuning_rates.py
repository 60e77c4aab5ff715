"""Which learning rate holds for every model, set of labels and seed: median, lowest and spread of test accuracy.

    python benchmarks/fine_tuning_rates.py --model runs/tiny/final runs/mini/final --rates 1e-4 3e-4 1e-3 --seeds 5 \\
        --texts trec.train.jsonl trec.validation.jsonl trec.test.jsonl \\
        --texts sick.train.jsonl sick.validation.jsonl sick.test.jsonl

Every training is that of `finetune.run` with its defaults but for the rate (given as it is, or as "auto"), without
restarts: a seed that learned nothing is counted. Of a set so small that a run trains five seeds, seeds 1 to 5, 6 to 10
and so on are a run, and the table has what these runs keep too. All rows get their first seed before any gets its
second; what was measured before is not measured again. About a minute for a training of 650 steps with 4 layers x 128
on one core.
"""

import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from table import Table, code, machine, parser

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Cell:
    """A model, a set of texts and a rate: a row of the printed table."""

    model: str
    texts: tuple[str, str, str]
    rate: str

    def name(self, seed: int) -> str:
        """Of its training with a seed."""
        return f"{self.model}, {self.texts[0]}, {self.rate}, seed {seed}"


def main() -> int:
    made = parser(__doc__, minutes=120)
    made.add_argument("--model", nargs="+", required=True, help="pretrained folders")
    made.add_argument("--texts", nargs=3, action="append", required=True, metavar=("TRAIN", "VALIDATION", "TEST"),
                      help="labelled texts, as finetune.run takes them; once for each set")  # fmt: skip
    made.add_argument("--rates", nargs="+", default=["auto"], help="learning rates, or auto (default: auto)")
    made.add_argument("--seeds", type=int, default=5, help="default: 5")
    made.add_argument("--from-scratch", action="store_true", help="the same models with nothing pretrained")
    given = made.parse_args()
    from data_prep.errors import UserError

    facts = {"code": code("model", "pretrain", "finetune"), "from_scratch": given.from_scratch, "quick": given.quick}
    table = Table(given.results / "fine_tuning_rates.jsonl", facts)
    cells = [Cell(*each) for each in product(given.model, map(tuple, given.texts), given.rates)]
    end = time.monotonic() + 60 * given.minutes
    try:
        for seed, cell in product(range(1, given.seeds + 1), cells):
            if time.monotonic() < end:
                table.row(cell.name(seed), lambda cell=cell, seed=seed: trained(cell, seed, given))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"Test accuracy over at most {given.seeds} seeds; {machine()}\n")
    print(markdown(table, cells, given.seeds))
    return 0


def trained(cell: Cell, seed: int, given) -> dict:
    """What a training reached: {"test": accuracy, "validation": scores, "validation_texts": their number, "seeds": of a
    run, "learned_nothing", "learning_rate", "seconds"}."""
    from finetune.dataset import read_dataset
    from finetune.finetuning import prepare
    from finetune.resolve import resolve, with_budget, with_task
    from finetune.settings import FinetuneSettings
    from finetune.training import SeedTraining
    from pretrain.engine.distributed import World
    from pretrain.engine.process import Interruption

    settings = FinetuneSettings(
        model=cell.model,
        **dict(zip(PARTS, cell.texts, strict=True)),
        learning_rate=cell.rate if cell.rate == "auto" else float(cell.rate),
        from_scratch=given.from_scratch,
        budget="20steps" if given.quick else "auto",
    )
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder, Interruption() as interruption:
        dataset = read_dataset(settings)
        settings = with_task(with_budget(resolve(settings), len(dataset.train)), dataset.task)
        material = prepare(settings, dataset)
        training = SeedTraining(settings, seed, Path(folder) / "seed", material, World(), interruption, most_restarts=0)
        found = training.results()
    return {
        "test": found["test"]["accuracy"],
        "validation": found["validation"],
        "validation_texts": len(dataset.validation),
        "seeds": settings.seeds,
        "learned_nothing": found["learned_nothing"],
        "learning_rate": found["learning_rate"],
        "seconds": found["seconds"],
    }


def markdown(table: Table, cells: list[Cell], seeds: int) -> str:
    """A row a cell, with what its seeds reached so far."""
    columns = ("model", "texts", "rate", "seeds", "mean", "median", "lowest", "highest", "learned nothing",
               "runs", "median kept", "lowest kept")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for cell in cells:
        rows = [table.rows[name] for seed in range(1, seeds + 1) if (name := cell.name(seed)) in table.rows]
        if rows:
            reached = [row["test"] for row in rows]
            numbers = [statistics.mean(reached), statistics.median(reached), min(reached), max(reached)]
            shown = " | ".join(f"{number:.3f}" for number in numbers)
            rate = f"{rows[0]['learning_rate']:g}" + (" (auto)" if cell.rate == "auto" else "")
            lost = sum(row["learned_nothing"] for row in rows)
            kept = kept_of(rows)
            runs = f"{len(kept)} | {statistics.median(kept):.3f} | {min(kept):.3f}" if kept else "0 | |"
            lines.append(f"| {cell.model} | {cell.texts[0]} | {rate} | {len(rows)} | {shown} | {lost} | {runs} |")
    return "\n".join(lines)


def kept_of(rows: list[dict]) -> list[float]:
    """The test accuracy of the seed that each whole run keeps, of runs of as many seeds as the set gets."""
    from finetune.tasks.classification import Classification
    from finetune.training import best_of

    size, texts = rows[0]["seeds"], rows[0]["validation_texts"]
    runs = [rows[first : first + size] for first in range(0, len(rows) - size + 1, size)]
    task = Classification()
    return [best_of(task, run, task.default_metric, texts)["test"] for run in runs]


if __name__ == "__main__":
    sys.exit(main())
