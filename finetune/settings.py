"""What a person may decide about fine-tuning."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar, Literal

from data_prep.console.options import option_name
from data_prep.errors import UserError
from pretrain.engine.settings import LoopSettings


class FinetuneError(UserError):
    """Fine-tuning or prediction cannot start or go on, for a reason a person can mend."""


SCRATCH, GROUPS = "scratch", "groups"
# Of seeds.
_MOST = 10_000
# Beside the weights of a fine-tuned model: how texts are read, and what was decided.
FACTS_FILE = "finetune.json"

LongText = Literal["head", "head-tail", "windows"]


@dataclass(frozen=True)
class FinetuneSettings(LoopSettings):
    """Settings of `python -m finetune.run`. Defaults are those of the BERT paper (section A.3), but the learning rate
    grows as the model gets smaller, and the number of epochs as the set does."""

    groups: ClassVar = {
        "what to train": ("model", "task", "train", "validation", "test", "out", "budget", "seeds", "compare",
                          "folds", "learning_curve", "from_scratch", "dry_run"),
        "texts": ("text_column", "label_column", "group_column", "report_by", "encoding", "skip_bad_rows",
                  "sequence_length", "long_text", "show_text"),
        "what counts": ("metric", "positive", "operating_point", "calibrate", "patience", "class_weights",
                        "hidden_layers", "freeze_encoder", "layer_decay", "unfreeze", "mlm_weight", "teacher",
                        "teacher_weight", "grid", "seed"),
        **LoopSettings.groups,
    }  # fmt: skip

    model: str = "runs/builtin/final"
    """The pretrained BERT: final/ of a run, a checkpoint, or a folder of transformers."""
    task: Literal[
        "auto", "classification", "multi-label", "regression", "tagging", "multiple-choice", "question-answering",
        "similarity",
    ] = "auto"  # fmt: skip
    """classification: one class per text; multi-label: any number of labels (a list, or joined by ;); regression: a
    number; tagging: entities or other tags of words; multiple-choice: one of the choices in each row;
    question-answering: the answer in a context; similarity: vectors for search, close for similar texts. auto: chosen
    by the rows of --train, never similarity."""
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
    """Column of the text; two for pairs of texts, or for a question and its choices. Found by name if not given."""
    label_column: str | None = None
    """Column of the labels. Found by name if not given."""
    group_column: str | None = None
    """Column that says whose text a row is (a patient, a case). Rows with the same value are held out together, or not
    at all."""
    report_by: str | None = None
    """Also show the final results separately for each value of this column (a site, a year)."""
    encoding: str = "utf-8"
    """Encoding of the files; auto: found for each."""
    skip_bad_rows: bool = False
    """Leave out rows without text or label, or with a label that is not in --train; bad_rows.jsonl lists them."""
    sequence_length: int | Literal["auto"] = "auto"
    """Most tokens read at once. auto: as many as the model can."""
    long_text: LongText | Literal["auto"] = "auto"
    """How longer texts are read. head: the beginning; head-tail: a quarter from the beginning, the rest from the end;
    windows: everything, in overlapping windows (not for choices). auto: head; windows for tagging and question
    answering."""

    show_text: Literal["yes", "no"] = "yes"
    """no: mistakes.md and messages name the places of texts, not the texts."""

    seeds: int | Literal["auto"] = "auto"
    """How many times to train, with seeds SEED, SEED + 1 and so on: gives mean and spread, keeps the best. auto: 1, or
    5 where 30 epochs are under 600 steps and --budget is auto."""
    seed: int = 1
    """Decides the new head, the order of the texts and the dropout."""
    metric: str = "auto"
    """Score on the validation texts that selects the best epoch and seed; the loss breaks ties. auto: macro_f1;
    micro_f1 for multi-label, strict_f1 for entities, f1 for answers, loss for regression, accuracy for choices and for
    tags that are no entities; for vectors spearman if pairs have scores, else mrr."""
    positive: str | None = None
    """With two classes, the positive one. If not given: the rarer one in --train."""
    operating_point: str | None = None
    """Choose the decision threshold that reaches this on the validation texts: sensitivity=0.95, or specificity, ppv,
    npv. With two classes it is that of the positive one; with multi-label, those of the labels."""
    calibrate: bool = False
    """Calibrate the probabilities by temperature scaling on the validation texts (classification and multi-label)."""
    patience: int | None = None
    """Stop after this many evaluations without a new best."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rare classes count more, by n / (classes x rows of the class)."""
    hidden_layers: int = 0
    """Extra hidden layers in the head (then transformers cannot open the model, our own commands can)."""
    freeze_encoder: bool = False
    """Train pooler and head only."""
    grid: Literal["none", "paper"] = "none"
    """paper: try batch sizes 16 and 32, three learning rates and 2 to 4 epochs with the first seed, and keep the
    best on the validation texts."""
    layer_decay: float = 1.0
    """Learning rate of each layer, as a share of that of the layer above it; the head has the full rate. 1: all have
    the same."""
    unfreeze: float = 0.0
    """Gradual unfreezing: over this share of the budget the layers start to learn one by one, from the last layer down
    to the embeddings. 0: all learn from the start."""
    mlm_weight: float = 0.0
    """Learn masked words of the training texts too: their loss times this is added to that of the task."""
    teacher: str | None = None
    """Learn the probabilities of this fine-tuned model too, which knows the same classes and has the same vocabulary
    (classification and tagging)."""
    teacher_weight: float = 0.5
    """Share of the loss that is the teacher's; the rest is that of the labels."""
    from_scratch: bool = False
    """Start from the same model with nothing pretrained, to see what pretraining is worth."""
    compare: tuple[str, ...] = ()
    """Models to compare with --model in one table: folders, or "scratch" for --model with nothing pretrained. The table
    also has baselines without a BERT, such as TF-IDF with logistic regression."""

    folds: str | None = None
    """Cross-validation, for few rows. 5: split --train into five parts, train five times, and test each time on a
    different part; groups: leave out one group of --group-column at a time. Gives mean and spread."""
    learning_curve: bool = False
    """Train on an eighth, a quarter, a half and all of --train, to see what more rows would bring."""
    dry_run: bool = False
    """Read the rows, do a few steps, print three examples and the plan, and stop."""
    budget: str = "auto"
    """How long each seed trains: 3epochs, 500steps or 10m. auto: 3epochs, for small sets more (until about 600
    steps are done, or 1,500 by a narrow model, but at most 30epochs)."""
    batch_size: int = 32
    """Texts of one optimizer step."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw, or muon for the matrices of the layers with adamw for the rest."""
    learning_rate: float | Literal["auto", "search"] = "auto"
    """Peak learning rate. auto: 5e-5 at hidden size 768, more for smaller models; with --compare the same as search.
    search: try three with the first seed, and keep the best on the validation texts."""
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
            if value not in (None, "auto") and not 1 <= value <= _MOST:
                raise FinetuneError(f"--{name} {value} is out of range: give 1 to {_MOST:,}")
        if not 0 <= self.hidden_layers <= 8:
            raise FinetuneError(f"--hidden-layers {self.hidden_layers} is out of range: give 0 to 8")
        if not 0 <= self.seed < 1 << 62:
            raise FinetuneError(f"--seed {self.seed} is not between 0 and 2^62: use a small positive number")
        if self.sequence_length != "auto" and self.sequence_length < 8:
            raise FinetuneError(f"--sequence-length {self.sequence_length} is too short for a text: use 8 or more")
        if len(self.text_column) > 2:
            raise FinetuneError("--text-column names more than two columns: give one, or two for pairs")
        if self.train == "builtin" and (self.text_column or self.label_column or self.group_column or self.report_by):
            raise FinetuneError(
                "builtin has no columns for --text-column, --label-column, --group-column or --report-by"
            )
        if self.freeze_encoder and self.optimizer == "muon":
            raise FinetuneError("--optimizer muon is for the matrices that --freeze-encoder freezes: drop one")
        if not 0 < self.layer_decay <= 1:
            raise FinetuneError(
                f"--layer-decay {self.layer_decay:g} is out of range: give a number above 0 and up to 1, say 0.9"
            )
        if not 0 <= self.unfreeze < 1:
            raise FinetuneError(f"--unfreeze {self.unfreeze:g} is no share of the budget below 1: give 0.5, say")
        if self.freeze_encoder and (self.layer_decay != 1 or self.unfreeze):
            raise FinetuneError("--freeze-encoder leaves no layers for --layer-decay and --unfreeze: drop it or them")
        if not 0 <= self.mlm_weight <= 10:
            raise FinetuneError(f"--mlm-weight {self.mlm_weight:g} is out of range: give one from 0 to 10, say 0.5")
        if self.freeze_encoder and self.mlm_weight:
            raise FinetuneError("--mlm-weight teaches the encoder, which --freeze-encoder keeps as it is: drop one")
        if not 0 < self.teacher_weight <= 1:
            raise FinetuneError(f"--teacher-weight {self.teacher_weight:g} is no share: give one from 0 to 1, say 0.5")
        if self.teacher is None and self.teacher_weight != FinetuneSettings.teacher_weight:
            raise FinetuneError("--teacher-weight is for a --teacher: give one, or leave it out")
        if self.freeze_encoder and self.from_scratch:
            raise FinetuneError("--freeze-encoder with --from-scratch freezes weights that never learned: drop one")
        if self.freeze_encoder and SCRATCH in self.compare:
            raise FinetuneError(f"--freeze-encoder freezes weights that never learned: take {SCRATCH} out of --compare")
        for model in self.compare:
            if not os.path.exists(model) and model != SCRATCH and get_close_matches(model, [SCRATCH]):
                raise FinetuneError(f"--compare {model} is no folder: did you mean {SCRATCH}?")
        if self.grid == "paper":
            defaults = {name: getattr(FinetuneSettings, name)
                        for name in ("learning_rate", "budget", "batch_size", "evaluations")}  # fmt: skip
            given = [option_name(name) for name, value in defaults.items() if getattr(self, name) != value]
            if given:
                raise FinetuneError(f"--grid paper chooses what {', '.join(given)} would say: leave that out")
        if self.folds is not None:
            if self.folds != GROUPS and not (self.folds.isdecimal() and 2 <= int(self.folds) <= 50):
                raise FinetuneError(f"--folds {self.folds}: give 2 to 50, or {GROUPS} to leave one group out at a time")
            if self.test or self.validation:
                raise FinetuneError("--folds takes test and validation texts out of --train: leave --test and "
                                    "--validation out")  # fmt: skip
        several = {"--compare": self.compare, "--folds": self.folds, "--learning-curve": self.learning_curve}
        named = [option for option, is_given in several.items() if is_given]
        if len(named) > 1:
            raise FinetuneError(f"{' and '.join(named)} cannot be combined: give one of them")
        if named and self.teacher is not None:
            why = "" if self.compare else ", which holds back texts that it has learned from"
            raise FinetuneError(f"--teacher cannot be combined with {named[0]}{why}: drop one")
        if self.from_scratch and self.compare:
            raise FinetuneError(
                f'--from-scratch cannot be combined with --compare: give "{SCRATCH}" among the models to compare'
            )
