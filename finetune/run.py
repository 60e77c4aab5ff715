"""The stage: a pretrained BERT and labelled texts -> a classifier with its results. `python -m finetune.run`"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.console import command_line
from pretrain.engine import process

from .settings import FinetuneSettings

_EXAMPLES = """\
python -m finetune.run
python -m finetune.run --model runs/notes/final --train labels.csv --test test.csv --seeds 3 --out runs/labels
python -m finetune.run --model runs/notes/final --train pairs.jsonl --text-column question answer --long-text windows
python -m finetune.run --model runs/notes/final --train labels.csv --compare scratch bert-folder --seeds 5"""


@command_line.takes_options(FinetuneSettings)
def finetune(settings: FinetuneSettings) -> Path:
    """Fine-tune a pretrained BERT, or go on with a run: `python -m finetune.run` with its options as keywords.

    `python -m finetune.run --help` explains each option.

    Returns:
        `out`, the folder of the run: `final/` is the model, for `Classifier.load`; `results.json` is what was reached.
        With `compare` each model has such a folder in it.

    Raises:
        UserError: the input cannot be used, or `out` holds something else.
        Interrupted: a signal came, in a notebook that of its stop button; the same call goes on from what was saved.
    """
    return run(settings)


def run(settings: FinetuneSettings) -> Path:
    """`python -m finetune.run`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from . import finetuning
    from .compare import compare
    from .dry_run import dry_run
    from .folds import cross_validate
    from .learning_curve import learning_curve
    from .resolve import out_folder

    with process.left_as_found():
        # One process of several makes the plan.
        if settings.dry_run and os.environ.get("RANK", "0") == "0":
            dry_run(settings)
        if settings.dry_run:
            return out_folder(settings)
        if settings.folds:
            return cross_validate(settings)
        if settings.learning_curve:
            return learning_curve(settings)
        return compare(settings) if settings.compare else finetuning.finetune(settings)


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(
        FinetuneSettings,
        run,
        prog="python -m finetune.run",
        description="Fine-tune a pretrained BERT on your own labelled texts, and measure it.",
        examples=_EXAMPLES,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
