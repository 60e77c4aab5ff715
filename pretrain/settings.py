"""What a person may decide about a training run."""

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from data_prep.settings import ExampleSettings, PrepSettings

from .engine.settings import LoopSettings, PretrainError


@dataclass(frozen=True)
class PretrainSettings(LoopSettings):
    """Settings of `python -m pretrain.run`."""

    groups: ClassVar = {
        "what to train": ("out", "budget", "preset", "init_from", "prepared", "objective", "dry_run"),
        **LoopSettings.groups,
    }

    out: str = "auto"
    """Folder of the run. auto: runs/NAME OF THE CORPUS."""
    prepared: str | None = None
    """Train on this prepared corpus (a folder that data_prep wrote) and prepare nothing."""
    preset: str = "auto"
    """Layers x width: tiny (2x128), micro (4x128), mini (4x256), small (4x512), medium (8x512), base (12x768), large
    (24x1024). auto: on a CPU micro for budgets up to 10 minutes, else mini; on a GPU base."""
    init_from: str | None = None
    """Continue from this BERT (ours, or one of transformers), with its sizes and tokenizer."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices; biases and LayerNorms have none."""
    objective: Literal["mlm+nsp", "mlm"] = "mlm+nsp"
    """Masked words and next sentences, or masked words alone."""
    dry_run: bool = False
    """Read a sample, do two steps and an evaluation, print the plan, and stop."""
    prep: PrepSettings = field(default_factory=PrepSettings)
    examples: ExampleSettings = field(default_factory=ExampleSettings)

    @property
    def next_sentence(self) -> bool:
        """Whether next sentences are to be predicted, where the corpus has pairs."""
        return "nsp" in self.objective.split("+")

    def __post_init__(self):
        super().__post_init__()
        if self.prepared is not None:
            for setting in fields(PrepSettings):
                # show_text does not change the corpus.
                if setting.name != "show_text" and getattr(self.prep, setting.name) != setting.default:
                    option = setting.name.replace("_", "-")
                    raise PretrainError(f"--{option} cannot be combined with --prepared, which needs none: drop one")
        if self.prep.extend_vocab and not (self.init_from or self.prep.tokenizer):
            raise PretrainError("--extend-vocab has nothing to extend: give the BERT to continue from as --init-from")
        if self.init_from is not None:
            beside = {
                "preset": self.preset != "auto",
                "vocab-size": self.prep.vocab_size != "auto",
                "tokenizer": self.prep.tokenizer is not None,
                "no-lowercase": not self.prep.lowercase,
                "strip-accents": self.prep.strip_accents,
            }
            for option in (option for option, given in beside.items() if given):
                raise PretrainError(f"--{option} cannot be combined with --init-from, which brings its own: drop one")
