"""The stage: raw text -> a prepared corpus. `python -m data_prep.run --corpus PATH...`"""

import sys
from collections.abc import Iterable

from .console import command_line
from .settings import PrepCommand


def run(command: PrepCommand) -> None:
    """`python -m data_prep.run`. What is heavy is imported only now, so that --help answers at once."""
    from .dry_run import dry_run
    from .preparation import prepare

    if command.dry_run:
        dry_run(command)
    else:
        prepare(command.prep, command.examples, command.out, command.static_masks)


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
