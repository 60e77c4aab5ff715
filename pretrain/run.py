"""The stage: a corpus, or a prepared one -> a pretrained BERT. `python -m pretrain.run`"""

import os
import sys
from collections.abc import Iterable

from data_prep.console import command_line

from .settings import PretrainSettings

_EXAMPLES = """\
python -m pretrain.run
python -m pretrain.run --corpus notes/ --budget 2h --out runs/notes
python -m pretrain.run --prepared prepared --preset base --budget 3epochs --sequence-length 512
python -m pretrain.run --corpus notes/ --init-from bert-folder --dry-run"""


def run(settings: PretrainSettings) -> None:
    """`python -m pretrain.run`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from .dry_run import dry_run
    from .pretraining import pretrain

    if settings.dry_run:
        # One process of several makes the plan.
        if os.environ.get("RANK", "0") == "0":
            dry_run(settings)
    else:
        pretrain(settings)


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
