"""The stage: raw text -> a prepared corpus. `python -m data_prep.run --corpus PATH...`"""

import sys
from collections.abc import Iterable

from . import command_line
from .settings import PrepCommand


def run(command: PrepCommand) -> None:
    """`python -m data_prep.run`. What is heavy is imported only now, so that --help answers at once."""
    from .preparation import prepare

    prepare(command.prep, command.examples, command.out, command.static_masks)


def main(argv: Iterable[str] | None = None) -> int:
    return command_line.main(
        PrepCommand,
        run,
        prog="python -m data_prep.run",
        description="Prepare a corpus: vocabulary, token ids, sentence pairs, and a report of what is in the data.",
        examples=(
            "python -m data_prep.run --corpus notes/ --out prepared\n"
            "python -m data_prep.run --corpus cases.jsonl --text-column body --out prepared --vocab-size 16384"
        ),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
