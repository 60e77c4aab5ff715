"""The stage: a corpus, or a prepared one -> a pretrained BERT. `python -m pretrain.run`"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from data_prep.console import command_line

from .engine import process
from .settings import PretrainSettings

_EXAMPLES = """\
python -m pretrain.run
python -m pretrain.run --corpus notes/ --budget 2h --out runs/notes
python -m pretrain.run --prepared prepared --preset base --budget 3epochs --sequence-length 512
python -m pretrain.run --corpus notes/ --init-from bert-folder --dry-run"""


@command_line.takes_options(PretrainSettings)
def pretrain(settings: PretrainSettings) -> Path:
    """Pretrain a BERT, or go on with a run: `python -m pretrain.run` with its options as keywords.

    `python -m pretrain.run --help` explains each option.

    Returns:
        `out`, the folder of the run: `final/` is the model, `results.json` what it reached on held-out text.

    Raises:
        UserError: the input cannot be used, or `out` holds something else.
        Interrupted: a signal came, in a notebook that of its stop button; the same call goes on from what was saved.
    """
    return run(settings)


def run(settings: PretrainSettings) -> Path:
    """`python -m pretrain.run`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from . import pretraining
    from .dry_run import dry_run
    from .resolve import out_folder

    with process.left_as_found():
        # One process of several makes the plan.
        if settings.dry_run and os.environ.get("RANK", "0") == "0":
            dry_run(settings)
        return out_folder(settings) if settings.dry_run else pretraining.pretrain(settings)


def main(argv: Iterable[str] | None = None) -> int:
    return command_line.main(
        PretrainSettings,
        run,
        prog="python -m pretrain.run",
        description="Pretrain a BERT on your own text: prepares the corpus, trains, evaluates on held-out text.",
        examples=_EXAMPLES,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
