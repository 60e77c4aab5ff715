"""What a person may decide about fine-tuning."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar, Literal

from data_prep.errors import UserError
from pretrain.engine.settings import LoopSettings


class FinetuneError(UserError):
    """Fine-tuning or prediction cannot start or go on, for a reason a person can mend."""


SCRATCH = "scratch"
# Beside the weights of a fine-tuned model: how texts are read, and what was decided.
FACTS_FILE = "finetune.json"

LongText = Literal["head", "head-tail", "windows"]


@dataclass(frozen=True)
class FinetuneSettings(LoopSettings):
    """Settings of `python -m finetune.run`. Defaults are those of the BERT paper (section A.3), but the learning rate
    grows as the model gets smaller, and the number of epochs as the set does."""

    groups: ClassVar = {
        "what to train": ("model", "task", "train", "validation", "test", "out", "budget", "seeds", "compare",
                          "from_scratch", "dry_run"),
        "texts": ("text_column", "label_column", "group_column", "encoding", "skip_bad_rows", "sequence_length",
                  "long_text", "show_text"),
        "what counts": ("metric", "patience", "class_weights", "hidden_layers", "freeze_encoder", "seed"),
        **LoopSettings.groups,
    }  # fmt: skip

    model: str = "runs/builtin/final"
    """The pretrained BERT: final/ of a run, a checkpoint, or a folder of transformers."""
    task: Literal["auto", "classification", "multi-label", "regression", "tagging"] = "auto"
    """One class a text; any number of labels (lists, or joined by ;); a number; entities and other tags of words. auto:
    by the labels of --train."""
    train: str = "builtin"
    """Labelled texts: .jsonl .csv .tsv .json .conll (also .gz) or .parquet, a folder or glob of them, hub:owner/name,
    or builtin: docstrings to be told apart by package."""
    validation: str | None = None
    """Labelled texts that choose the best epoch and seed. Without them a tenth of --train, of each class."""
    test: str | None = None
    """Labelled texts for the final result; they choose nothing, and each seed's best model reads them once."""
    out: str = "auto"
    """Folder of the results. auto: runs/NAME OF THE MODEL-NAME OF THE TEXTS."""
    text_column: tuple[str, ...] = ()
    """Column of the text; two for pairs of texts. Found by name if not given."""
    label_column: str | None = None
    """Column of the labels. Found by name if not given."""
    group_column: str | None = None
    """Column of whose text a row is (a patient, a case): all rows of one are held back together, or none."""
    encoding: str = "utf-8"
    """Encoding of the files; auto: found for each."""
    skip_bad_rows: bool = False
    """Leave out and count rows without text or label, or with a label that is not in --train."""
    sequence_length: int | Literal["auto"] = "auto"
    """Most tokens read at once. auto: as many as the model can."""
    long_text: LongText | Literal["auto"] = "auto"
    """Of longer texts read the beginning; a quarter from the beginning and the rest from the end; or everything, in
    overlapping windows. auto: head; windows for tagging."""

    show_text: Literal["yes", "no"] = "yes"
    """no: mistakes.md and messages name the places of texts, not the texts."""

    seeds: int | Literal["auto"] = "auto"
    """How many times to train, with seeds SEED, SEED + 1 and so on: gives mean and spread, keeps the best. auto: 1, or
    5 where --budget auto does not get to 600 steps."""
    seed: int = 1
    """Decides the new head, the order of the texts and the dropout."""
    metric: str = "auto"
    """What the best epoch and the best seed are chosen by, on the validation texts; the loss between equal ones. auto:
    macro_f1, micro_f1 of labels, f1 of entities, loss of numbers."""
    patience: int | None = None
    """Stop after this many evaluations without a new best."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rare classes count more, by n / (classes x rows of the class)."""
    hidden_layers: int = 0
    """Extra hidden layers in the head (then transformers cannot open the model, our own commands can)."""
    freeze_encoder: bool = False
    """Train pooler and head only."""
    from_scratch: bool = False
    """Start from the same model with nothing pretrained, to see what pretraining is worth."""
    compare: tuple[str, ...] = ()
    """Further models for one table: folders, or "scratch" for --model with nothing pretrained. The table also has tools
    without a BERT, such as TF-IDF with logistic regression."""

    dry_run: bool = False
    """Read the rows, do a few steps, print three examples and the plan, and stop."""
    budget: str = "auto"
    """How long each seed trains: 3epochs, 500steps or 10m. auto: 3epochs, for small sets more (until 600 steps are
    done, but at most 30epochs)."""
    batch_size: int = 32
    """Texts of one optimizer step."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw, or muon for the matrices of the layers with adamw for the rest."""
    learning_rate: float | Literal["auto", "search"] = "auto"
    """Peak learning rate. auto: 5e-5 for 768 units, more for smaller models; with --compare search. search: the best of
    three on the validation texts, with the first seed."""
    dropout: float = 0.1
    """Dropout on embeddings, sublayers, attention weights and head."""
    evaluations: int | Literal["auto"] = "auto"
    """Evaluations on the validation texts, evenly over the budget. auto: one an epoch, but at most 10; 5 for other
    budgets."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay, besides the best, until the seed is finished."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("seeds", "patience"):
            value = getattr(self, name)
            if value not in (None, "auto") and value < 1:
                raise FinetuneError(f"--{name} {value} is less than 1: give a positive number")
        if not 0 <= self.hidden_layers <= 8:
            raise FinetuneError(f"--hidden-layers {self.hidden_layers} is out of range: give 0 to 8")
        if not 0 <= self.seed < 1 << 62:
            raise FinetuneError(f"--seed {self.seed} is not between 0 and 2^62: use a small positive number")
        if self.sequence_length != "auto" and self.sequence_length < 8:
            raise FinetuneError(f"--sequence-length {self.sequence_length} is too short for a text: use 8 or more")
        if len(self.text_column) > 2:
            raise FinetuneError("--text-column names more than two columns: give one, or two for pairs")
        if self.train == "builtin" and (self.text_column or self.label_column or self.group_column):
            raise FinetuneError("--text-column, --label-column and --group-column have nothing to act on in builtin")
        if self.freeze_encoder and self.optimizer == "muon":
            raise FinetuneError("--optimizer muon is for the matrices that --freeze-encoder freezes: drop one")
        if self.freeze_encoder and self.from_scratch:
            raise FinetuneError("--freeze-encoder with --from-scratch freezes weights that never learned: drop one")
        for model in self.compare:
            if not os.path.exists(model) and model != SCRATCH and get_close_matches(model, [SCRATCH]):
                raise FinetuneError(f"--compare {model} is no folder: did you mean {SCRATCH}?")
        if self.from_scratch and self.compare:
            raise FinetuneError(
                f'--from-scratch cannot be combined with --compare: give "{SCRATCH}" among the models to compare'
            )
