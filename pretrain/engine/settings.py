"""What a person may decide about training, of whatever model."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from .budget import Budget
from .errors import PretrainError
from .schedule import Kind

_RANGES = {
    "learning_rate": (1e-9, 1),
    "warmup": (0, 0.9),
    "dropout": (0, 0.9),
    "weight_decay": (0, 1),
    "clip_norm": (1e-6, 1e6),
}


@dataclass(frozen=True)
class LoopSettings:
    """How a model is trained: the same for pretraining and fine-tuning. `auto` is resolved once and written down."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "how it learns": ("batch_size", "optimizer", "learning_rate", "schedule", "warmup", "weight_decay", "clip_norm",
                          "dropout"),
        "the machine": ("device", "precision", "micro_batch_tokens", "threads"),
        "while it runs": ("evaluations", "checkpoint_every", "keep_checkpoints", "log_every", "resume",
                          "detect_anomaly"),
    }  # fmt: skip

    budget: str = "auto"
    """How long: 30m, 2h, 5000steps, 3epochs or 1Btokens. auto: 4m for builtin, else 30m."""
    batch_size: int | Literal["auto"] = "auto"
    """Examples of one optimizer step. auto: about 7,000 tokens on a CPU, 28,000 on a GPU."""
    micro_batch_tokens: int | Literal["auto"] = "auto"
    """Tokens computed at once (bounds the memory). auto: 8,192 on a CPU, 65,536 on a GPU."""
    optimizer: Literal["auto", "adamw", "muon"] = "auto"
    """adamw, or muon for the matrices of the layers with adamw for the rest. auto: muon."""
    learning_rate: float | Literal["auto"] = "auto"
    """Peak learning rate. auto: by optimizer and model size; with --init-from a tenth."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and LayerNorms have none."""
    clip_norm: float = 1.0
    """Largest norm of the gradient, over all parameters together."""
    schedule: Kind = "linear"
    """How the rate falls to 0 after the warm-up."""
    warmup: float = 0.1
    """Share of the budget over which the learning rate rises."""
    dropout: float = 0.0
    """Dropout on embeddings, sublayers and attention weights."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Of matrix products. auto: bf16 where the hardware has it, else fp16 on CUDA, or fp32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: cuda, else cpu."""
    threads: int | Literal["auto"] = "auto"
    """Most CPU threads of a process. auto: OMP_NUM_THREADS, else one a core."""
    evaluations: int = 10
    """Held-out evaluations, evenly over the budget; a checkpoint follows each."""
    checkpoint_every: str = "10m"
    """Time or steps between checkpoints besides."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay, besides the best."""
    log_every: int = 10
    """Steps between rows of metrics.jsonl."""
    detect_anomaly: bool = False
    """Stop at the first number that is not finite, naming the module that computed it; slower."""
    resume: Literal["auto", "never"] = "auto"
    """auto: go on with the same run where --out holds it; never: refuse a used folder."""

    def __post_init__(self) -> None:
        if self.budget != "auto":
            Budget.parse(self.budget)
        if Budget.parse(self.checkpoint_every, "--checkpoint-every").unit not in ("seconds", "steps"):
            raise PretrainError(
                f"--checkpoint-every {self.checkpoint_every} is neither a time nor steps: write 10m or 500steps"
            )
        for name in ("batch_size", "micro_batch_tokens", "threads", "keep_checkpoints", "log_every", "evaluations"):
            value = getattr(self, name)
            if value != "auto" and value < 1:
                raise PretrainError(f"--{name.replace('_', '-')} {value} is less than 1: give a positive number")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, str) and not low <= value <= high:
                raise PretrainError(f"--{name.replace('_', '-')} {value} is out of range: give {low} to {high}")

    @property
    def peak(self) -> float:
        """The learning rate of resolved settings."""
        return float(self.learning_rate)
