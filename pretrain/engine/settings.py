"""What a person may decide about the training of any model; its budget and its schedule, and the error of the stage."""

import math
import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, get_args

from data_prep.console.options import option_name
from data_prep.errors import UserError


class PretrainError(UserError):
    """Pretraining cannot start or go on, for a reason a person can mend."""


ScheduleKind = Literal["linear", "cosine", "warmup-stable-decay"]
_MOST, _LARGEST = {"threads": 4096, "batch_size": 1 << 24}, 1 << 40
LOWEST_RATE = 1e-9
_RANGES = {
    "learning_rate": (LOWEST_RATE, 1),
    "warmup": (0, 0.9),
    "dropout": (0, 0.9),
    "weight_decay": (0, 1),
    "adam_beta2": (0.5, 0.99999),
    "clip_norm": (1e-6, 1e6),
}


@dataclass(frozen=True)
class LoopSettings:
    """How a model is trained: the same for pretraining and fine-tuning. `auto` is resolved once and written down."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "how it learns": ("batch_size", "optimizer", "learning_rate", "schedule", "warmup", "weight_decay",
                          "adam_beta2", "clip_norm", "dropout"),
        "the machine": ("device", "precision", "micro_batch_tokens", "threads"),
        "while it runs": ("evaluations", "checkpoint_every", "keep_checkpoints", "log_every", "resume",
                          "detect_anomaly"),
    }  # fmt: skip

    budget: str = "auto"
    """How long: 30m, 2h, 5000steps, 3epochs or 1Btokens. auto: 4m for builtin, else 30m."""
    batch_size: int | tuple[int, ...] | Literal["auto"] = "auto"
    """Examples per step; with several sequence lengths one number for each: 64,16. auto: 7,000 tokens, 28,000 on a
    GPU, half as many if a time budget is short."""
    micro_batch_tokens: int | Literal["auto"] = "auto"
    """Tokens per forward pass (limits memory). auto: 8,192 on a CPU, 65,536 on a GPU."""
    optimizer: Literal["auto", "adamw", "muon"] = "auto"
    """adamw, or muon for matrices inside the model with adamw for the rest. auto: muon."""
    learning_rate: float | Literal["auto"] = "auto"
    """Peak learning rate. auto: by optimizer and model size; with --init-from a tenth, more if the MLM head is new."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and LayerNorms have none."""
    adam_beta2: float = 0.999
    """Decay of AdamW's mean of squared gradients, also beside muon; RoBERTa has 0.98."""
    clip_norm: float = 1.0
    """Largest norm of the gradient, over all parameters together."""
    schedule: ScheduleKind = "linear"
    """How the rate falls to 0 after the warm-up."""
    warmup: float = 0.1
    """Share of the budget over which the learning rate rises."""
    dropout: float = 0.0
    """Dropout on embeddings, sublayers and attention weights."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Data type of matrix products. auto: bf16 if supported, else fp16 on CUDA, else fp32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: cuda, else cpu."""
    threads: int | Literal["auto"] = "auto"
    """Maximum CPU threads per process. auto: OMP_NUM_THREADS, else one per core."""
    evaluations: int = 10
    """Held-out evaluations, evenly over the budget; a checkpoint follows each."""
    checkpoint_every: str = "10m"
    """Time or steps between checkpoints, besides those after evaluations: 10m or 500steps."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay, besides the best."""
    log_every: int = 10
    """Steps between rows of metrics.jsonl."""
    detect_anomaly: bool = False
    """Stop at the first number that is not finite, naming the module that computed it; slower."""
    resume: Literal["auto", "never"] = "auto"
    """auto: resume the same run if --out holds it; never: refuse an --out that holds a run."""

    def __post_init__(self) -> None:
        if self.budget != "auto":
            Budget.parse(self.budget)
        every = "10m or 500steps"
        if Budget.parse(self.checkpoint_every, "--checkpoint-every", every).unit not in ("seconds", "steps"):
            raise PretrainError(
                f"--checkpoint-every {self.checkpoint_every} is neither a time nor steps: write {every}"
            )
        for name in ("batch_size", "micro_batch_tokens", "threads", "keep_checkpoints", "log_every", "evaluations"):
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value != "auto" and not 1 <= value <= _MOST.get(name, _LARGEST):
                    most = _MOST.get(name, _LARGEST)
                    raise PretrainError(f"{option_name(name)} {value} is out of range: give 1 to {most:,}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, str) and not low <= value <= high:
                raise PretrainError(f"{option_name(name)} {value} is out of range: give {low} to {high}")

    @property
    def peak(self) -> float:
        """The learning rate of resolved settings."""
        return float(self.learning_rate)

    @property
    def muon_of_heads(self) -> bool:
        """Whether Muon is to optimize matrices of heads too."""
        return False

    @property
    def decay(self) -> float:
        """The weight decay of resolved settings."""
        return self.weight_decay


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmb]?)\s*(step|epoch|token)s?")

Unit = Literal["seconds", "steps", "epochs", "tokens"]
_COUNTED: dict[str, Unit] = {"step": "steps", "epoch": "epochs", "token": "tokens"}


@dataclass(frozen=True)
class Budget:
    """An amount of `unit`."""

    amount: float
    unit: Unit

    @classmethod
    def parse(
        cls, text: str, option: str = "--budget", examples: str = "90s, 30m, 2h, 5000steps, 3epochs or 1Btokens"
    ) -> Self:
        """Read `30m`, `2h`, `5000steps`, `3epochs`, `1Btokens`.

        Args:
            option, examples: for messages: where the text is from, and what may stand there.

        Raises:
            PretrainError: it is none of these, or not positive.
        """
        text = text.strip().lower()
        if match := _TIME.fullmatch(text):
            found = cls(float(match[1]) * _SECONDS[match[2]], "seconds")
        elif match := _COUNT.fullmatch(text):
            found = cls(float(match[1]) * _SCALE[match[2]], _COUNTED[match[3]])
        else:
            raise PretrainError(f"{option} {text!r} is not understood: write {examples}")
        if not 0 < found.amount < math.inf:
            what = "too much" if found.amount else "nothing"
            raise PretrainError(f"{option} {text!r:.42} is {what}: give a positive amount, as {examples}")
        return found

    @property
    def is_counted(self) -> bool:
        """Whether progress is counted, so that a run can be repeated bit for bit, or measured by the clock."""
        return self.unit != "seconds"

    def used(self, seconds: float, steps: int, epochs: float, tokens: int) -> float:
        """How much of it is used, in its unit, at most all."""
        return min(self.amount, {"seconds": seconds, "steps": steps, "epochs": epochs, "tokens": tokens}[self.unit])


# Of the peak, in the first step.
_FIRST_SHARE = 0.01


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a share of its peak: a continuous function of the amount of the budget that is used; 0 at
    the end.

    All amounts are in the unit of the budget, so that a larger budget leaves the steps before as they were.

    Raises:
        PretrainError: the kind is unknown.
    """

    kind: ScheduleKind
    """`warmup-stable-decay` falls in the last fifth (Hu et al. 2024, section 4)."""
    warmup: float
    """Over which it rises linearly, from a hundredth: a first step of 0 would be lost."""
    total: float
    restart: float = 0.0
    """Where a run that had passed its warm-up went on with a larger budget."""
    restart_share: float = 0.0
    """Its share there: it rises linearly from this to that of the larger budget."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScheduleKind):
            raise PretrainError(f"the schedule {self.kind!r} is unknown: there are {', '.join(get_args(ScheduleKind))}")

    def __call__(self, used: float) -> float:
        if used < self.warmup:
            return _FIRST_SHARE + (1 - _FIRST_SHARE) * used / self.warmup
        share, rise = max(0.0, self._after_warmup(used)), self._rise(used)
        return self.restart_share + (share - self.restart_share) * rise

    def progress(self, used: float) -> float:
        """How far what changes over the budget has gone, in [0, 1]: from start to end, or from the end of a plateau."""
        begin = self.decay_start if self.has_plateau else 0.0
        return min(1.0, max(0.0, (used - begin) / (self.total - begin)))

    def extended(self, total: float, fallen_at: float | None) -> "Schedule":
        """The schedule of a budget that has grown to `total`.

        Args:
            fallen_at: the amount used so far, where the rate has begun to fall: the new schedule goes on from there.
        """
        if fallen_at is None:
            return replace(self, total=total)
        return replace(self, total=total, restart=fallen_at, restart_share=self(fallen_at))

    def _after_warmup(self, used: float) -> float:
        left = (self.total - used) / (self.total - self.warmup)
        if self.kind == "linear":
            return left
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (1 - left)))
        return 1.0 if used < self.decay_start else (self.total - used) / (self.total - self.decay_start)

    def _rise(self, used: float) -> float:
        """From 0 at a restart to 1, over the share of what is left that the warm-up has of all."""
        length = self.warmup * (self.total - self.restart) / self.total
        return min(1.0, (used - self.restart) / length) if self.restart and length else 1.0

    @property
    def has_plateau(self) -> bool:
        """Whether the rate stays at its peak until `decay_start`, from where a larger budget goes on as if from the
        start."""
        return self.kind == "warmup-stable-decay"

    @property
    def decay_start(self) -> float:
        """Where the rate begins to fall from a plateau."""
        return self.warmup + 0.8 * (self.total - self.warmup)
