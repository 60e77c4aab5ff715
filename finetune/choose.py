"""Which rows to label next: those that the models are unsure of, and that differ. `python -m finetune.choose`"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL
from data_prep.text.sources import Source

from .inputs import begin, refuse_taken
from .output import Output, to_json
from .predict import PredictSettings, predictions
from .rows import BadRows, Example
from .settings import FinetuneError
from .simple_models import word_weights

UNCERTAINTY, DISAGREEMENT = "uncertainty", "disagreement"
# So many times the wanted rows, the most uncertain ones, are looked at for how they differ.
CANDIDATES = 20

_OF_PREDICTION = ("file", "out", "text_column", "encoding", "show_text", "skip_bad_rows", "precision", "device")


@dataclass(frozen=True)
class ChooseSettings:
    """Settings of `python -m finetune.choose`."""

    file: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Texts without labels: .txt (a text a line), .jsonl, .csv, .tsv, .json, .conll (also .gz) or .parquet."""
    model: str = "runs/builtin-packages"
    """Folder of a fine-tuning, all of whose seeds are asked, or of one model."""
    rows: int = 50
    """How many rows to choose."""
    out: str | None = None
    """File to write (JSON lines), which must not be there yet. Without it: standard output."""
    text_column: tuple[str, ...] = ()
    """Column of the text, two for pairs. Those of training, or found by name, if not given."""
    encoding: str = "utf-8"
    """Encoding of the input; auto: found for each file."""
    show_text: Literal["yes", "no"] = "yes"
    """no: nothing of the texts on the screen, so --out has to be given."""
    skip_bad_rows: bool = False
    """Pass over rows without a text instead of stopping."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is faster where the hardware computes in it, and less exact."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: cuda, else cpu."""

    def __post_init__(self):
        if not self.file:
            refuse_taken(self.text_column)
            raise FinetuneError("no file is named: give one of texts to choose from")
        if self.rows < 1:
            raise FinetuneError(f"--rows {self.rows} is less than 1: give a positive number")
        if self.out and not self.out.lower().endswith(".jsonl"):
            raise FinetuneError(f"--out {self.out} is no .jsonl file, which is what is written: name it so")
        # What it refuses is refused here too.
        self.asked(self.model)

    def asked(self, model: str) -> PredictSettings:
        """The same question as one of `finetune.predict` to a model."""
        given = {name: getattr(self, name) for name in _OF_PREDICTION}
        return PredictSettings(model=model, format="jsonl", **given)


def run(settings: ChooseSettings) -> None:
    """`python -m finetune.choose`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from .predictor import decided_on_mean, seeds_decided_on

    sources = begin(settings.asked(settings.model), ChooseSettings.model, "finetune.run")
    folders = seeds_decided_on(settings.model) or [settings.model]
    several = len(folders) > 1
    require_readable(settings, sources, several)
    bad = BadRows(settings.skip_bad_rows, "pass over such rows")
    task, found = answers(settings, folders[0], sources, bad, several)
    if not found:
        raise FinetuneError(f"{settings.file[0]} has no usable row: give a file of texts")
    by_model = [[output for *_, output in found]]
    for folder in folders[1:]:
        bad.count = 0
        by_model.append([output for *_, output in answers(settings, folder, sources, bad, several)[1]])
    task = decided_on_mean(settings.model, task) if several else task
    outputs = [np.stack(each) for each in zip(*by_model, strict=True)]
    unsure = np.array([task.uncertainty(each) for each in outputs])  # [n, 2]
    with Output(settings.out) as output:
        for place in chosen(unsure[:, 0], [example for _, example, _ in found], settings.rows):
            row, example, _ = found[place]
            mean = task.averaged(outputs[place])
            # As `Ensemble.outputs`; what one model gives is finished.
            mean = task.finished(mean[None])[0] if several else mean
            numbers = dict(zip(reasons_of(several), (round(float(each), 6) for each in unsure[place]), strict=False))
            output.file.write(to_json({**row, **numbers, **task.prediction(mean, example)}) + "\n")
    kept = min(settings.rows, len(found))
    skipped = f", {bad.count:,} passed over" if bad.count else ""
    models = f"{len(folders)} seeds" if several else "one model"
    print(f"{kept:,} of {len(found):,} rows{skipped}, chosen with {models}", file=sys.stderr)


def reasons_of(several: bool) -> tuple[str, ...]:
    """The names of what a row is chosen by: several models may also disagree."""
    return (UNCERTAINTY, DISAGREEMENT) if several else (UNCERTAINTY,)


def require_readable(settings: ChooseSettings, sources: Sequence[Source], several: bool) -> None:
    """Raises FinetuneError where several models are to read what can be read only once, or none is at hand."""
    pipes = [source.shown for source in sources if source.is_on_disk and source.written is None]
    if pipes and several:
        raise FinetuneError(
            f"each seed of {settings.model} reads the texts, and {pipes[0]} can be read only once: save it as a file"
        )
    if (Path(settings.model) / "fold-1").is_dir():
        raise FinetuneError(
            f"{settings.model} is a run with --folds: give the folder of one fold, such as "
            f"{Path(settings.model) / 'fold-1'}"
        )


def answers(
    settings: ChooseSettings, folder: str, sources: Sequence[Source], bad: BadRows, several: bool
) -> tuple[Any, list[tuple[dict[str, Any], Example, np.ndarray]]]:
    """The task of one model, and what it makes of each usable row: (row, example, output).

    Args:
        several: whether it is one of several seeds.

    Raises:
        FinetuneError: its uncertainty cannot be measured, or a column has a name that is to be written.
    """
    from .predictor import Predictor

    asked = settings.asked(folder)
    predictor = Predictor(folder, settings.device, settings.precision)
    task = predictor.task
    if not task.has_answers:
        raise FinetuneError(f"{settings.model} is a model for {task.name}, whose uncertainty cannot be measured: "
                            "give a model for another task")  # fmt: skip
    if task.needs_seeds and not several:
        raise FinetuneError(
            f"for {task.name}, uncertainty is measured by how much several seeds differ, and {settings.model} has "
            "one seed: fine-tune with --seeds 3, and give the folder of the run"
        )
    names = {*reasons_of(several), *task.prediction_names(is_table=False)}
    found = []
    for row, example, output in (each for part in predictions(sources, asked, predictor, bad) for each in part):
        if output is None:
            continue
        if taken := [name for name in row if name in names]:
            raise FinetuneError(f'the input has a column "{taken[0]}" already: rename it')
        found.append((row, example, output))
    return task, found


def chosen(unsure: np.ndarray, examples: Sequence[Example], count: int) -> list[int]:
    """The numbers of the texts to label: one after the other the most uncertain one, times how far its words are from
    those of all chosen before (1 - the largest cosine of their TF-IDF weights).

    Greedy, so the same each time; k-means++ draws in proportion to such products (Ash et al. 2020, section 3).

    Args:
        unsure: [n], how uncertain each text is.
    """
    order = np.argsort(-unsure, kind="stable").tolist()
    every = ["\n".join(example.every_text()) for example in examples]
    # Copies come last, where there is nothing else to choose from.
    first = {every[i]: i for i in reversed(order)}
    order.sort(key=lambda i: first[every[i]] != i)
    candidates = np.array(order[: CANDIDATES * count], dtype=np.int64)
    texts = [every[i] for i in candidates]
    vectorizer = word_weights()
    if not any(map(vectorizer.build_analyzer(), texts)):
        return candidates[:count].tolist()
    vectors = vectorizer.fit_transform(texts)
    # A text of which nothing is known is still before one that was chosen.
    weights, nearest = unsure[candidates] + 1e-9, np.zeros(len(candidates))
    found: list[int] = []
    for _ in range(min(count, len(candidates))):
        gain = weights * (1 - nearest)
        gain[found] = -1
        best = int(gain.argmax())
        found.append(best)
        nearest = np.maximum(nearest, (vectors @ vectors[[best]].T).toarray()[:, 0])
    return candidates[found].tolist()


_EXAMPLES = """\
python -m finetune.choose unlabelled.csv --model runs/labels --rows 50 --out to_label.jsonl"""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(
        ChooseSettings,
        run,
        prog="python -m finetune.choose",
        description="Choose the rows that are worth labelling next: uncertain ones that differ from each other.",
        examples=_EXAMPLES,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
