"""The stage: a pretrained BERT and labelled texts -> a classifier with its results. `python -m finetune.run`"""

import os
import sys
from collections.abc import Sequence

from data_prep.console import command_line

from .settings import FinetuneSettings

_EXAMPLES = """\
python -m finetune.run
python -m finetune.run --model runs/notes/final --train labels.csv --test test.csv --seeds 3 --out runs/labels
python -m finetune.run --model runs/notes/final --train pairs.jsonl --text-column question answer --long-text windows
python -m finetune.run --model runs/notes/final --train labels.csv --compare scratch bert-folder --seeds 5"""


def run(settings: FinetuneSettings) -> None:
    """`python -m finetune.run`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from .compare import compare
    from .dry_run import dry_run
    from .finetuning import finetune

    if settings.dry_run:
        # One process of several makes the plan.
        if os.environ.get("RANK", "0") == "0":
            dry_run(settings)
    elif settings.compare:
        compare(settings)
    else:
        finetune(settings)


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
