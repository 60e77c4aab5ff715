"""Runs BERT and its relatives side by side, for the tables of docs/relatives.md, and writes the tables of all pages.

    python benchmarks/relatives.py --data DATA       # every run of these tables without a result, then the tables
    python benchmarks/relatives.py                   # the tables alone, from the results that are there

Each is ten minutes of pretraining on the articles for each of three seeds, which has the machine to itself, and one
fine-tuning for each of two labelled sets. Runs and results are those of published.py (experiments.py has the commands):
what one of the two has run, the other does not run again. A run that was interrupted goes on where it was.
"""

import argparse
import sys
from pathlib import Path

from experiments import RELATED_SETS, RELATIVES, SEEDS, STUDENTS, THIRD_STEPS
from published import FOLDER, RESULTS, Results, bring_up_to_date, mistake, this_machine


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of the data sets; without it nothing is run")
    made.add_argument("--folder", type=Path, default=FOLDER, help="what the runs write (default: %(default)s)")
    given = made.parse_args()
    if problem := mistake(given.data, None, runs(), this_machine()):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    bring_up_to_date(Results(RESULTS), runs(), given.data, given.folder)
    return 0


def runs() -> list[str]:
    """The names of all runs of the tables: first all pretrainings."""
    models = [*RELATIVES, *STUDENTS]
    pretrained = ["articles_60m", *(f"{name}_10m_{seed}" for name in models for seed in SEEDS)]
    fine_tuned = [f"{texts}_{name}_10m" for name in models for texts in RELATED_SETS]
    others = [f"{texts}_{name}" for name in ("articles_60m", *THIRD_STEPS) for texts in RELATED_SETS]
    return [*pretrained, *fine_tuned, *others]


if __name__ == "__main__":
    sys.exit(main())
