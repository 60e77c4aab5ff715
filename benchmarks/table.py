"""What every benchmark prints: the machine it ran on, and a Markdown table whose finished rows are kept on disk."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pretrain
from data_prep.errors import UserError
from model.config import ModelError

DEFAULT_FOLDER = Path("runs/benchmarks")


def parser(description: str, minutes: float | None, keeps_rows: bool = True) -> argparse.ArgumentParser:
    """A command line with the options that benchmarks share.

    Args:
        minutes: the default of a whole table; None: its time is not chosen by `--minutes`.
        keeps_rows: whether finished rows are kept, in the folder `--results`.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if minutes is not None:
        made.add_argument("--minutes", type=float, default=minutes, help=f"time for all rows (default: {minutes:g})")
    made.add_argument("--quick", action="store_true", help="a tenth of the time: shows that it runs, measures little")
    if keeps_rows:
        made.add_argument("--results", type=Path, default=DEFAULT_FOLDER, help=f"folder that keeps finished rows "
                          f"(default: {DEFAULT_FOLDER})")  # fmt: skip
    return made


def machine(device: str = "cpu") -> str:
    """One line that names what the numbers depend on: processor or GPU, arithmetic, threads, cores, torch."""
    from pretrain.engine.device import Machine

    return str(Machine.here(device))


def run(main: Callable[[], int | None]) -> int:
    """The exit code of a benchmark; a mistake of the user is said in a sentence."""
    try:
        return main() or 0
    except (UserError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
    return 2


def code(*names: str, packages: Sequence[str] = ()) -> str:
    """Changes with the Python sources of these files and folders, named from the top of the project, and with the
    versions of these packages."""
    found = hashlib.blake2b(repr([(name, version(name)) for name in packages]).encode(), digest_size=8)
    for name in names:
        path = Path(pretrain.__file__).parents[1] / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()


class Table:
    """Rows by name, each measured once; a second call of the benchmark finds those of the first.

    Args:
        file: JSON lines `{"name", "facts", "row"}`; made where it is not there.
        facts: what a row depends on besides its name: a row measured under other facts is measured again.
    """

    def __init__(self, file: Path, facts: dict):
        self.file, self.facts = file, json.loads(json.dumps(facts))
        self.rows: dict[str, dict] = {}
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                found = json.loads(line)
                if found["facts"] == self.facts:
                    self.rows[found["name"]] = found["row"]

    def row(self, name: str, measure: Callable[[], dict]) -> dict:
        """The row of this name: found, or measured now and written down."""
        if name not in self.rows:
            self.rows[name] = measure()
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "facts": self.facts, "row": self.rows[name]}) + "\n")
        return self.rows[name]

    def markdown(self, columns: Mapping[str, str]) -> str:
        """The table of all rows (see `markdown`)."""
        return markdown(self.rows, columns)


def markdown(rows: Mapping[str, dict], columns: Mapping[str, str]) -> str:
    """A table; columns maps a key of the rows to its heading, "" stands for the row's name."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    for name, row in rows.items():
        lines.append("| " + " | ".join(str(name if key == "" else row.get(key, "")) for key in columns) + " |")
    return "\n".join(lines)
