"""The stage: raw text -> a prepared corpus. `python -m data_prep.run --corpus PATH...`"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .console import command_line
from .settings import PrepCommand

if TYPE_CHECKING:
    from concurrent.futures import Executor


@command_line.takes_options(PrepCommand)
def prepare(command: PrepCommand, executor: "Executor | None" = None) -> Path:
    """Prepare a corpus, or find it prepared: `python -m data_prep.run` with its options as keywords.

    `python -m data_prep.run --help` explains each option.

    Args:
        executor: encodes the text, `workers` blocks of 2 MB at once and as many in wait; worker processes of this
            machine by default.

    Returns:
        `out`, for `pretrain(prepared=...)`, or for `PreparedCorpus` to look into it.

    Raises:
        UserError: the input cannot be used, or `out` holds something else.
    """
    return run(command, executor)


def run(command: PrepCommand, executor: "Executor | None" = None) -> Path:
    """`python -m data_prep.run`. What is heavy is imported only now, so that --help answers at once."""
    from . import preparation
    from .dry_run import dry_run

    if command.dry_run:
        dry_run(command)
    else:
        # Under torchrun all processes of a script come here: one prepares, the others take what it has made.
        several = os.environ.get("WORLD_SIZE", "1") != "1"
        preparation.prepare(command.prep, command.examples, command.out, command.static_masks, executor, several)
    return Path(command.out)


def main(argv: Iterable[str] | None = None) -> int:
    return command_line.main(
        PrepCommand,
        run,
        prog="python -m data_prep.run",
        description="Prepare a corpus: vocabulary, token ids, sentence pairs, a report of what is in the data.",
        examples=(
            "python -m data_prep.run --corpus notes/ --out prepared\n"
            "python -m data_prep.run --corpus notes/ --dry-run\n"
            "python -m data_prep.run --corpus cases.jsonl --text-column body --vocab-size 16384 --out prepared"
        ),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
