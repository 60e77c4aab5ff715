"""A fine-tuned model at work: what it makes of every text. `python -m finetune.predict`"""

import csv
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import numpy as np

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL
from data_prep.text.sources import Source

from .inputs import ROWS_AT_ONCE, Form, begin, check_question, longer_than, parts_of
from .output import Output, Written, asked_of, to_json
from .rows import BadRows, Example
from .settings import FinetuneError


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
    format: Literal["auto", "jsonl", "csv", "conll", "label-studio", "doccano", "prodigy", "squad"] = "auto"
    """Form of the output. auto: by the ending of --out (.jsonl, .csv, .conll), or jsonl on standard output. conll and
    those of annotation tools: of tagging. squad: of question answering, an answer for each id."""
    input_format: Form | None = None
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
        check_question(self)
        if self.show_text == "no" and self.out is None:
            raise FinetuneError("--show-text no keeps the rows, which hold the texts, off the screen: give --out")
        if len(self.text_column) > 2:
            raise FinetuneError("--text-column names more than two columns: give one, or two for pairs")


def run(settings: PredictSettings) -> None:
    """`python -m finetune.predict`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from .predictor import Ensemble, Predictor

    sources = begin(settings, PredictSettings.model, "finetune.run")
    form = output_format(settings)
    made = Ensemble if settings.ensemble else Predictor
    predictor = made(settings.model, settings.device, settings.precision)
    if form not in ("jsonl", "csv", *predictor.task.forms):
        raise FinetuneError(f"--format {form} is not for {predictor.task.name}: give jsonl or csv")
    bad = BadRows(settings.skip_bad_rows, "give such rows an empty label")
    began = time.monotonic()
    with Output(settings.out, asked_of(settings, sources)) as output:
        written, before = output.written, replace(output.written)
        writer = Writer(output.file, form, predictor.task, written, output.beginning)
        for found in predictions(sources, settings, predictor, bad, written.rows):
            writer.write(found)
            written.seconds = before.seconds + time.monotonic() - began
            written.skipped = before.skipped + bad.count
            written.num_long = before.num_long + predictor.num_long
            written.num_cut = before.num_cut + predictor.num_cut
            output.flush(written)
        writer.close()
    skipped = f", {written.skipped:,} of them without a usable text" if written.skipped else ""
    print(f"{written.rows:,} rows{skipped}{_long(written, predictor)}, {written.seconds:.1f} s", file=sys.stderr)


def _long(written: Written, predictor) -> str:
    """How many texts were longer than the model reads at once, and what was read of them."""
    if not written.num_long:
        return ""
    length, how, cut = predictor.facts.sequence_length, predictor.facts.long_text, written.num_cut
    of_cut = f"; {cut:,} tokens of questions or second texts were cut" if cut and how == "windows" else ""
    return f", {written.num_long:,} {longer_than(length, how, of_cut)}"


def predictions(sources: Sequence[Source], settings: PredictSettings, predictor, bad: BadRows, done: int = 0):
    """Lists of (row, example, output), the latter two None where a row is skipped, in input order.

    Args:
        done: rows at the beginning that are passed over.
    """
    task = predictor.task
    for part in parts_of(sources, settings, task, predictor.facts.text_columns, bad, ROWS_AT_ONCE, done):
        usable = [example for _, example in part if example]
        outputs = iter(task.of_texts(predictor.outputs(usable), usable) if usable else ())
        yield [(row, example, next(outputs) if example else None) for row, example in part]


class Writer:
    """Rows with their predictions as JSON lines or CSV (see `Task.prediction`), where all columns of the input stay, or
    in one of the task's own forms, which leave skipped rows out.

    Args:
        written: how much of the file is there already.
        beginning: reads what is there.
    """

    def __init__(
        self,
        file: TextIO,
        form: str,
        task,
        written: Written | None = None,
        beginning: Callable[[], str] = str,
    ):
        self.file, self.form, self.task, self.written = file, form, task, written or Written()
        self._csv: csv.DictWriter | None = None
        self._quoted: csv.DictWriter | None = None  # to the same file
        self._own_form = task.forms.get(form)
        if self.written.columns:
            self._begin_table(self.written.columns)
        if self._own_form and not self.written.rows:
            file.write(self._own_form.begin)
        # All other forms go on without a look at what is there, which may be long.
        is_keyed = self._own_form and self._own_form.key and self.written.rows
        self._keys = set(json.loads(beginning() + self._own_form.end)) if is_keyed else set()
        self._own = task.prediction_names(is_table=form == "csv")

    def write(self, found: Sequence[tuple[dict[str, Any], Example | None, np.ndarray | None]]) -> None:
        """Write rows (see `predictions`).

        Raises:
            FinetuneError: a column of the input has the name of one of ours, or comes up late in a CSV; two rows have
                the same key.
        """
        for row, example, output in found:
            taken = [name for name in self._own if name in row]
            if taken and not self._own_form:
                raise FinetuneError(f'the input has a column "{taken[0]}" already: rename it')
            self._write_row(row, example, output)
        self.written.rows += len(found)

    def _begin_table(self, columns: Sequence[str]) -> None:
        self._csv = csv.DictWriter(self.file, columns, lineterminator="\n")
        self._quoted = csv.DictWriter(self.file, columns, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def close(self) -> None:
        """Write what stands behind the last row; a table of no rows has its own columns."""
        if self.form == "csv" and self._csv is None:
            self._begin_table(self._own)
            self._csv.writeheader()
        if self._own_form:
            self.file.write(self._own_form.end if self.written.predictions or self._own_form.begin else "")

    def _write_row(self, row: dict[str, Any], example: Example | None, output: np.ndarray | None) -> None:
        own = dict.fromkeys(self._own)
        if self.form == "jsonl":
            own = own if output is None else self.task.prediction(output, example)
            self.file.write(to_json({**row, **own}) + "\n")
            return
        if self._own_form:
            if example is not None:
                between = self._own_form.between if self.written.predictions else ""
                found = self.task.written(self.form, row, example, output)
                self._check_key(row, example)
                self.file.write(between + found)
                self.written.predictions += 1
            return
        if self._csv is None:
            self.written.columns = [*row, *self._own]
            self._begin_table(self.written.columns)
            self._csv.writeheader()
        late = [name for name in row if name not in self._csv.fieldnames]
        if late:
            where = example.place if example else "a row"
            raise FinetuneError(
                f'{where} has a column "{late[0]}" that the first row does not have: give an --out that ends in .jsonl'
            )
        own = own if output is None else self.task.flat_prediction(output, example)
        line = {name: to_json(value) if isinstance(value, list | dict) else value for name, value in row.items()} | own
        # The csv module leaves bare a lone carriage return, which readers take for the end of a row, and blanks before
        # a text, which some pass over.
        texts = [value for value in line.values() if isinstance(value, str)]
        is_quoted = any("\r" in text or text.startswith(" ") for text in texts)
        (self._quoted if is_quoted else self._csv).writerow(line)

    def _check_key(self, row: dict[str, Any], example: Example) -> None:
        if name := self._own_form.key:
            key = str(row[name])
            if key in self._keys:
                raise FinetuneError(
                    f'{example.place} has the same "{name}" as a row before it, and --format {self.form} names answers '
                    "by it: make them different, or give --format jsonl"
                )
            self._keys.add(key)


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
