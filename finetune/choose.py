"""Which rows to label next: those that the models are unsure of, and that differ. `python -m finetune.choose`"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL

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
    from .predictor import Predictor, decided_on_mean, seeds_decided_on

    sources = begin(settings.asked(settings.model), ChooseSettings.model, "finetune.run")
    folders = seeds_decided_on(settings.model) or [settings.model]
    pipes = [source.shown for source in sources if source.is_on_disk and source.written is None]
    if pipes and len(folders) > 1:
        raise FinetuneError(f"each of the {len(folders)} seeds of {settings.model} reads the texts, and {pipes[0]} can "
                            "be read only once: save it as a file")  # fmt: skip
    if (Path(settings.model) / "fold-1").is_dir():
        raise FinetuneError(
            f"{settings.model} is a run with --folds: give the folder of one fold, such as "
            f"{Path(settings.model) / 'fold-1'}"
        )
    rows: list[dict[str, Any]] = []
    examples: list[Example] = []
    outputs: list[list[np.ndarray]] = []
    bad = BadRows(settings.skip_bad_rows, "pass over such rows")
    for number, folder in enumerate(folders):
        asked = settings.asked(folder)
        predictor = Predictor(folder, settings.device, settings.precision)
        task, bad.count = predictor.task, 0
        if not task.has_answers:
            raise FinetuneError(f"{settings.model} is a model for {task.name}, whose uncertainty cannot be measured: "
                                "give a model for another task")  # fmt: skip
        if task.needs_seeds and len(folders) < 2:
            raise FinetuneError(
                f"for {task.name}, uncertainty is measured by how much several seeds differ, and {settings.model} has "
                "one seed: fine-tune with --seeds 3, and give the folder of the run"
            )
        found = (each for part in predictions(sources, asked, predictor, bad) for each in part)
        usable = ((row, example, each) for row, example, each in found if example is not None and each is not None)
        reasons = (UNCERTAINTY, DISAGREEMENT)[: 2 if len(folders) > 1 else 1]
        names = {*reasons, *task.prediction_names(is_table=False)}
        for place, (row, example, each) in enumerate(usable):
            if number == 0:
                if taken := [name for name in row if name in names]:
                    raise FinetuneError(f'the input has a column "{taken[0]}" already: rename it')
                rows.append(row)
                examples.append(example)
                outputs.append([])
            outputs[place].append(each)
    if not rows:
        raise FinetuneError(f"{settings.file[0]} has no usable row: give a file of texts")
    task = decided_on_mean(settings.model, task) if len(folders) > 1 else task
    unsure = np.array([task.uncertainty(np.stack(each)) for each in outputs])  # [n, 2]
    with Output(settings.out) as output:
        for place in chosen(unsure[:, 0], examples, settings.rows):
            mean = task.averaged(outputs[place])
            # As `Ensemble.outputs`; what one model gives is finished.
            mean = task.finished(mean[None])[0] if len(folders) > 1 else mean
            prediction = task.prediction(mean, examples[place])
            numbers = dict(zip(reasons, (round(float(number), 6) for number in unsure[place]), strict=False))
            output.file.write(to_json({**rows[place], **numbers, **prediction}) + "\n")
    kept = min(settings.rows, len(rows))
    skipped = f", {bad.count:,} passed over" if bad.count else ""
    models = f"{len(folders)} seeds" if len(folders) > 1 else "one model"
    print(f"{kept:,} of {len(rows):,} rows{skipped}, chosen with {models}", file=sys.stderr)


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
