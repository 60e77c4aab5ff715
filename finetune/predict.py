"""A fine-tuned model at work: what it makes of every text. `python -m finetune.predict`"""

import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import numpy as np
from filelock import FileLock, Timeout

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL
from data_prep.durable import read_object, replaced, write_json
from data_prep.errors import UserError
from data_prep.text.readers import Meter, check_encoding, rows, text_lines
from data_prep.text.sources import Source, resolve

from .annotations import plain_row
from .rows import BadRows, Columns, Example, example_of, find_columns
from .settings import FinetuneError

# Rows held at a time: enough to put similar lengths together, few enough for a flat memory.
ROWS_AT_ONCE = 1024
# What became of texts that are longer than the model reads.
_READ = {"head": "their beginning was read", "head-tail": "beginning and end were read", "windows": "read in windows"}


@dataclass(frozen=True)
class PredictSettings:
    """Settings of `python -m finetune.predict`."""

    file: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Texts: .txt (a text a line), .jsonl, .csv, .tsv, .json, .conll (also .gz) or .parquet. Without a file: standard
    input."""
    model: str = "runs/builtin-packages/final"
    """Folder of the model: final/ of a fine-tuning, or a classifier of transformers."""
    ensemble: bool = False
    """Ask all seeds of a run (--model: its folder) and average."""
    out: str | None = None
    """File to write, which must not be there yet. Without it: standard output."""
    format: Literal["auto", "jsonl", "csv", "conll", "label-studio", "doccano", "prodigy"] = "auto"
    """Form of the output. auto: by the ending of --out (.jsonl, .csv, .conll), or jsonl on standard output. conll and
    those of annotation tools: of tagging."""
    input_format: Literal["txt", "jsonl", "csv", "tsv", "conll"] | None = None
    """Form of standard input, txt if not given: a text a line; a tab between the two texts of a pair."""
    text_column: tuple[str, ...] = ()
    """Column of the text, two for pairs. Those of training, or found by name, if not given."""
    encoding: str = "utf-8"
    """Encoding of the input; auto: found for each file."""
    show_text: Literal["yes", "no"] = "yes"
    """no: nothing of the texts on the screen, so --out has to be given."""
    skip_bad_rows: bool = False
    """Give rows without a text an empty label instead of stopping."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is faster where the hardware computes in it; probabilities differ by up to 0.02, the label in 1 text of
    1,000."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: cuda, else cpu."""

    def __post_init__(self):
        if len(self.file) > 1:
            raise FinetuneError(f"{len(self.file)} files were given: give one, or pipe them into standard input")
        if self.file and self.input_format:
            raise FinetuneError("--input-format is of standard input, and a file was given: leave one out")
        if self.file == ("builtin",):
            raise FinetuneError("builtin has labels of its own: give a file of texts")
        if not self.file and self.text_column and os.path.isfile(self.text_column[-1]):
            raise FinetuneError(f"--text-column took {self.text_column[-1]}, a file: put the file before --text-column")
        if self.show_text == "no" and self.out is None:
            raise FinetuneError("--show-text no keeps the rows, which hold the texts, off the screen: give --out")
        if self.out and self.file and os.path.realpath(self.out) == os.path.realpath(self.file[0]):
            raise FinetuneError(f"--out {self.out} is the file to read: give another name")
        if len(self.text_column) > 2:
            raise FinetuneError("--text-column names more than two columns: give one, or two for pairs")


def run(settings: PredictSettings) -> None:
    """`python -m finetune.predict`. Torch is imported only now, so that --help and bad arguments answer at once."""
    import torch

    from pretrain.engine.device import default_threads
    from pretrain.engine.folder import require_made

    from .predictor import Ensemble, Predictor

    check_encoding(settings.encoding)
    check_output(settings.out)
    form = output_format(settings)
    sources = input_sources(settings)
    require_made(settings.model, PredictSettings.model, "finetune.run")
    torch.set_num_threads(default_threads())
    made = Ensemble if settings.ensemble else Predictor
    predictor = made(settings.model, settings.device, settings.precision)
    if form not in ("jsonl", "csv", *predictor.task.forms):
        raise FinetuneError(f"--format {form} is not for {predictor.task.name}: give jsonl or csv")
    bad = BadRows(settings.skip_bad_rows, "give such rows an empty label")
    began = time.monotonic()
    try:
        with Output(settings.out, asked_of(settings, sources)) as output:
            written, before = output.written, output.written.skipped
            writer = Writer(output.file, form, predictor.task, written)
            for found in predictions(sources, settings, predictor, bad, written.rows):
                writer.write(found)
                written.skipped = before + bad.count
                output.flush(written)
            writer.close()
    except BrokenPipeError:
        # Whoever read the output has had enough; Python must not try to write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    skipped = f", {written.skipped:,} of them without a usable text" if written.skipped else ""
    long = ""
    if predictor.num_long:
        facts = predictor.facts
        long = f", {predictor.num_long:,} longer than {facts.sequence_length} tokens ({_READ[facts.long_text]})"
    print(f"{written.rows:,} rows{skipped}{long}, {time.monotonic() - began:.1f} s", file=sys.stderr)


def input_sources(settings: PredictSettings) -> list[Source]:
    """The files to read, or standard input."""
    if settings.file:
        name = settings.file[0]
        # Words that could be no path: a text, which is not to be repeated.
        is_text = " " in name and "/" not in name and not Path(name).suffix.strip(". ") and not has_magic(name)
        if is_text and not name.startswith("hub:") and not os.path.exists(name):
            raise FinetuneError("what was given is no file: give one of texts, or pipe a text (echo ... |)")
        return resolve(settings.file, labelled=True)[0]
    return [Source("standard input", "/dev/stdin", settings.input_format or "txt")]


def input_rows(source: Source, encoding: str, is_pair: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of every row; lines of plain text become rows of "text" and, for pairs, "text_pair"."""
    if source.has_rows:
        for place, row in rows(source, encoding, Meter()):
            yield f"{source.name}:{place}", plain_row(row)
        return
    for number, line in enumerate(text_lines(source, encoding, Meter()), 1):
        first, _, second = line.partition("\t") if is_pair else (line, "", "")
        yield f"{source.name}:{number}", {"text": first} | ({"text_pair": second} if is_pair else {})


def predictions(sources: Sequence[Source], settings: PredictSettings, predictor, bad: BadRows, done: int = 0):
    """Lists of (row, example, output), the latter two None where a row is skipped, in input order.

    Args:
        done: rows at the beginning that are passed over.
    """
    is_pair = len(predictor.facts.text_columns) > 1
    at_once = 1 if not settings.file and sys.stdin.isatty() else ROWS_AT_ONCE
    for source in sources:
        columns = None
        waiting = input_rows(source, settings.encoding, is_pair)
        while part := list(islice(waiting, at_once)):
            if columns is None:
                columns = text_columns(source, [row for _, row in part], settings, predictor)
            done, part = max(0, done - len(part)), part[done:]
            if not part:
                continue
            examples = [example_of(predictor.task, place, row, columns, bad) for place, row in part]
            usable = [example for example in examples if example]
            outputs = iter(predictor.task.of_texts(predictor.outputs(usable), usable) if usable else ())
            yield [
                (row, example, next(outputs) if example else None)
                for (_, row), example in zip(part, examples, strict=True)
            ]


def text_columns(source: Source, sample: Sequence[dict[str, Any]], settings: PredictSettings, predictor) -> Columns:
    """The columns of the texts: those named, else those of training, else those with a usual name.

    Raises:
        FinetuneError: there are none, or one text where the model was trained on pairs, or the reverse.
    """
    trained = predictor.facts.text_columns
    if not source.has_rows:
        if settings.text_column:
            raise FinetuneError(f"{source.shown} is plain text without columns: leave --text-column out")
        return Columns(("text", "text_pair")[: max(1, len(trained))], None)
    names = {name for row in sample for name in row}
    wanted = settings.text_column or (trained if names.issuperset(trained) else ())
    show_text = settings.show_text == "yes"
    columns = find_columns(predictor.task, source.shown, sample, wanted, None, labelled=False, show_text=show_text)
    if trained and len(columns.texts) != len(trained):
        kinds = {1: "single texts", 2: "pairs of texts"}
        raise FinetuneError(
            f"{settings.model} was trained on {kinds[len(trained)]}, and {source.shown} has {columns}: pass "
            f"--text-column with {'two names' if len(trained) > 1 else 'one name'}"
        )
    return columns


@dataclass
class Written:
    """How much of an output is on disk."""

    rows: int = 0
    """Of the input, skipped ones too."""
    bytes: int = 0
    skipped: int = 0
    """Rows without a usable text."""
    predictions: int = 0
    columns: list[str] | None = None
    """Of a CSV."""


class Writer:
    """Rows with their predictions as JSON lines or CSV (see `Task.prediction`), where all columns of the input stay, or
    in one of the task's own forms, which leave skipped rows out."""

    def __init__(self, file: TextIO, form: str, task, written: Written | None = None):
        self.file, self.form, self.task, self.written = file, form, task, written or Written()
        self._csv: csv.DictWriter | None = None
        self._own_form = task.forms.get(form)
        if self.written.columns:
            self._csv = self._table(self.written.columns)
        if self._own_form and not self.written.rows:
            file.write(self._own_form.begin)
        self._own = task.prediction_names(is_table=form == "csv")

    def write(self, found: Sequence[tuple[dict[str, Any], Example | None, np.ndarray | None]]) -> None:
        """Write rows (see `predictions`).

        Raises:
            FinetuneError: a column of the input has the name of one of ours, or comes up late in a CSV.
        """
        for row, example, output in found:
            taken = [name for name in self._own if name in row]
            if taken and not self._own_form:
                raise FinetuneError(f'the input has a column "{taken[0]}" already: rename it')
            self._write_row(row, example, output)
        self.written.rows += len(found)

    def _table(self, columns: Sequence[str]) -> csv.DictWriter:
        return csv.DictWriter(self.file, columns, lineterminator="\n")

    def close(self) -> None:
        """Write what stands behind the last row."""
        if self._own_form:
            self.file.write(self._own_form.end if self.written.predictions or self._own_form.begin else "")

    def _write_row(self, row: dict[str, Any], example: Example | None, output: np.ndarray | None) -> None:
        own = dict.fromkeys(self._own)
        if self.form == "jsonl":
            own = own if output is None else self.task.prediction(output, example)
            self.file.write(json.dumps({**row, **own}, ensure_ascii=False, default=str) + "\n")
            return
        if self._own_form:
            if example is not None:
                between = self._own_form.between if self.written.predictions else ""
                self.file.write(between + self.task.written(self.form, row, example, output))
                self.written.predictions += 1
            return
        if self._csv is None:
            self.written.columns = [*row, *self._own]
            self._csv = self._table(self.written.columns)
            self._csv.writeheader()
        late = [name for name in row if name not in self._csv.fieldnames]
        if late:
            raise FinetuneError("a row has a column that the first row does not have: use --format jsonl")
        own = own if output is None else self.task.flat_prediction(output, example)
        plain = {k: json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict) else v for k, v in row.items()}
        self._csv.writerow({**plain, **own})


def output_format(settings: PredictSettings) -> str:
    """The form that is asked for, or that the name of the file says; raises FinetuneError where it says none."""
    if settings.format != "auto":
        return settings.format
    if settings.out is None:
        return "jsonl"
    ending = Path(settings.out).suffix.lower()
    if ending not in (".jsonl", ".csv", ".conll"):
        raise FinetuneError(f"--out {settings.out} is no .csv, .jsonl or .conll file: name it so, or give the --format")
    return ending[1:]


def check_output(path: str | None) -> None:
    """Refuse, before the work is done, a name that cannot be written."""
    if path is not None and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        raise FinetuneError(f"--out {path} cannot be written: give the name of a file in a folder that is there")
    if path is not None and Path(path).is_file():
        raise FinetuneError(f"--out {path} is there already, and would be lost: give another name, or remove it")


class Output:
    """A file that appears under its name when all of it is written; the same command goes on with what an interrupted
    one has written of it.

    Args:
        path: of the file; None for standard output.
        asked: what decides the content. None: nothing goes on.

    Raises:
        FinetuneError: another process is writing it, or something else stands where its beginning is kept.
    """

    def __init__(self, path: str | None, asked: dict[str, Any] | None = None):
        self.path, self.asked = path, asked
        self.written = Written()

    def __enter__(self) -> "Output":
        if self.path is None:
            # The encoding of the terminal is not that of JSON; half a surrogate pair comes out as JSON spells it.
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
            self.file: TextIO = sys.stdout
            return self
        self._part, self._state = (Path(f"{self.path}{ending}") for ending in (".part", ".part.json"))
        self._lock = FileLock(f"{self.path}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise FinetuneError(f"another process is writing {self.path}: give another --out") from None
        try:
            self._open()
        except BaseException:
            self._unlock()
            raise
        return self

    def _unlock(self) -> None:
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def _open(self) -> None:
        """Take up what is there, or begin."""
        found = read_object(self._state, asked=dict, written=dict) if self.asked is not None else None
        names = {each.name for each in fields(Written)}
        if found and found["asked"] == self.asked and found["written"].keys() == names and self._part.is_file():
            self.written = Written(**found["written"])
        size = self._part.stat().st_size if self._part.exists() else 0
        if size and not 0 < self.written.bytes <= size:
            raise FinetuneError(f"{self._part} is there, and not of this command: remove it, or give the options that "
                                "it was begun with")  # fmt: skip
        self.file = open(self._part, "a", encoding="utf-8", errors="backslashreplace", newline="")
        self.file.truncate(self.written.bytes)
        if self.written.rows:
            print(f"going on after row {self.written.rows:,}, from {self._part}", file=sys.stderr)

    def flush(self, written: Written) -> None:
        """Put what was written on disk, and how much it is."""
        self.file.flush()
        self.written = written
        if self.path is not None and self.asked is not None:
            os.fsync(self.file.fileno())
            written.bytes = self._part.stat().st_size
            write_json(self._state, {"asked": self.asked, "written": asdict(written)})

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self.path is None:
            return
        self.file.close()
        # A mistake in the rows, once mended, gives another file to read; after anything else the same command goes on.
        is_kept = kind is not None and not issubclass(kind, UserError) and self.asked is not None and self.written.rows
        if kind is None:
            with replaced(Path(self.path), is_shared=True) as temporary:
                os.replace(self._part, temporary)
        elif not is_kept:
            self._part.unlink(missing_ok=True)
        if not is_kept:
            self._state.unlink(missing_ok=True)
        self._unlock()


def asked_of(settings: PredictSettings, sources: Sequence[Source]) -> dict[str, Any] | None:
    """What decides an output: the options, the files to read and the model; None for what can be read only once."""
    if any(source.written is None for source in sources):
        return None
    files = [[os.path.realpath(source.path), source.size, source.written] for source in sources]
    kinds, own = (".json", ".safetensors", ".bin", ".txt"), f"{Path(settings.out or '').name}.part.json"
    model = sorted(
        [path.relative_to(settings.model).as_posix(), path.stat().st_size, path.stat().st_mtime_ns]
        for path in Path(settings.model).rglob("*")
        if path.is_file() and path.suffix in kinds and path.name != own
    )
    options = {name: value for name, value in asdict(settings).items() if name != "device"}
    return json.loads(json.dumps({"options": options, "files": files, "model": model}, default=str))


_EXAMPLES = """\
python -m finetune.predict --model runs/labels/final new.csv --out predicted.csv
echo "One text." | python -m finetune.predict --model runs/labels/final"""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(
        PredictSettings,
        run,
        prog="python -m finetune.predict",
        description="Label texts with a fine-tuned model.",
        examples=_EXAMPLES,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
