"""What a person may decide about a training run."""

import math
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import ClassVar, Literal, Self

from data_prep.console.options import option_name
from data_prep.settings import ExampleSettings, PrepSettings, option_of

from .engine.settings import LoopSettings, PretrainError

WEIGHT_DECAY = 0.1
"""The usual one."""
# Of the budget for short examples and for long ones (Devlin et al. 2019, appendix A.2).
LENGTH_SHARES = (0.9, 0.1)
# Objectives that learn from what one masking alone makes.
_MASKING_OF = {"mlm+sbo": "span"}
# What may be given of an objective with pairs.
_OF_PAIRS = {"pair_weight": (0.01, 100), "pair_rate": (0.01, 10)}
# What an objective leaves no choice in: option -> what `auto` stands for then, beside which no other value is taken.
FIXED: dict[str, dict[str, str]] = {"electra": {"softmax": "full", "family": "electra", "muon_matrices": "layers"}}
# What `auto` stands for where an objective has it otherwise than the rest.
USUAL: dict[str, dict[str, float]] = {"electra": {"mask_share": 0.15}}
# Objectives of a BERT that a teacher's words can be learned beside.
TAUGHT = ("mlm", "mlm+nsp")


@dataclass(frozen=True)
class PretrainSettings(LoopSettings):
    """Settings of `python -m pretrain.run`."""

    groups: ClassVar = {
        "what to train": ("out", "budget", "preset", "family", "init_from", "keep_layers", "prepared", "objective",
                          "dry_run"),
        "a teacher": ("teacher", "teacher_weights", "teacher_positions"),
        **LoopSettings.groups,
        "how it learns": (*LoopSettings.groups["how it learns"], "muon_matrices"),
        "the machine": (*LoopSettings.groups["the machine"], "compile"),
        "pairs and masks": ("pair_weight", "pair_rate", "packing", "length_shares", "shifted_share", "mask_share",
                            "softmax"),
    }  # fmt: skip

    out: str = "auto"
    """Folder of the run. auto: runs/NAME OF THE CORPUS."""
    prepared: str | None = None
    """Train on this prepared corpus (a folder that data_prep wrote) and prepare nothing."""
    preset: str = "auto"
    """Layers x width: tiny 2x128, micro 4x128, mini 4x256, small 4x512, medium 8x512, base 12x768, large 24x1024. auto:
    on a CPU micro up to 10 minutes, else mini; on a GPU up to base, with at most 5 parameters a token."""
    family: Literal["auto", "bert", "albert"] = "auto"
    """Architecture of a fresh model. auto: the one of the objective."""
    init_from: str | None = None
    """Continue from this BERT (ours, or one of transformers), with its sizes and tokenizer."""
    keep_layers: int | tuple[int, ...] | Literal["auto", "all", "half"] = "auto"
    """Layers to take over from the model to start from: all, half (every second one), or their numbers from 0 on (0,3).
    auto: all of --init-from, half of --teacher."""
    teacher: str | None = None
    """Also learn from this BERT (ours, or one of transformers), as DistilBERT does: the student learns the teacher's
    word probabilities and last hidden states. It starts from half of the teacher's layers, or from --init-from."""
    teacher_weights: tuple[float, ...] = (5.0, 2.0, 1.0)
    """How much three losses count: the teacher's probabilities, masked words, the teacher's last hidden states."""
    teacher_positions: Literal["all", "masked"] = "all"
    """At which tokens the student learns from the teacher: all of them, or only the masked ones, which is faster."""
    weight_decay: float | Literal["auto"] = "auto"
    """Decoupled weight decay of matrices; biases and LayerNorms have none. auto: 0.1, and 0.4 for a fresh model under
    muon that reads up to 1.5 M tokens 30 times or more; a larger budget later does not change it."""
    muon_matrices: Literal["auto", "layers", "layers+head"] = "auto"
    """What muon optimizes: the matrices of the layers, or these and the dense one of the MLM head. auto: layers+head
    for a fresh BERT of --objective mlm or mlm+nsp, else layers."""
    pair_weight: float | Literal["auto"] = "auto"
    """Weight of the NSP or SOP loss; 1 in the BERT paper. auto: 0.35 for a fresh BERT of --objective mlm+nsp under
    muon, else 1."""
    pair_rate: float | Literal["auto"] = "auto"
    """Learning rate of the pooler and the NSP or SOP head, as a multiple of that of the rest. auto: 0.03 for a fresh
    BERT of --objective mlm+nsp under muon, else 1."""
    objective: Literal["mlm+nsp", "mlm", "mlm+sop", "mlm+sbo", "electra"] = "mlm+nsp"
    """mlm: predict masked words; mlm+nsp: also the next sentence (BERT); mlm+sop: also the order of two sentences
    (ALBERT); mlm+sbo: also masked spans from their boundaries (SpanBERT); electra: find the words that a small
    generator put in place of masked ones."""
    packing: Literal["windows", "full-sentences"] = "windows"
    """How examples are cut. windows: within one document; full-sentences: as many whole sentences as fit, across
    document boundaries."""
    length_shares: tuple[float, ...] = ()
    """Share of the budget for each of several sequence lengths. Without it 0.9,0.1 for two."""
    shifted_share: float | Literal["auto"] = "auto"
    """With several sequence lengths: share of the shorter examples whose positions are shifted at random, so that all
    position embeddings are trained from the start. auto: 0.25, unless the model already has all positions, or
    a teacher is given."""
    mask_share: float | tuple[float, ...] | Literal["auto"] = "auto"
    """Share of the tokens to mask and predict: one number, or one for the start and one for the end of the budget.
    auto: 0.4,0.15; for ELECTRA 0.15."""
    softmax: Literal["auto", "full", "sampled"] = "auto"
    """Vocabulary entries scored in training: all (full), or a random sample (sampled). auto: sampled on a CPU, else
    full; always full for ELECTRA and with --teacher."""
    compile: Literal["auto", "layers", "none"] = "auto"
    """layers: compile the layers with torch.compile at the start of the run. auto: layers on one GPU with bf16, without
    dropout, for a budget of 10 minutes or more; else none."""
    dry_run: bool = False
    """Read a sample, do two steps and an evaluation, print the plan, and stop."""
    prep: PrepSettings = field(default_factory=PrepSettings)
    examples: ExampleSettings = field(default_factory=ExampleSettings)

    @property
    def decay(self) -> float:
        """The weight decay; the usual one where nothing has chosen it, as in benchmarks of single steps."""
        return WEIGHT_DECAY if self.weight_decay == "auto" else float(self.weight_decay)

    @property
    def muon_of_heads(self) -> bool:
        """Whether Muon is to optimize the matrix of the MLM head too."""
        return self.muon_matrices == "layers+head"

    @property
    def of_pairs(self) -> dict[str, float]:
        """Weight and rate of what is learned from pairs: BERT's where nothing has chosen them, as in benchmarks of
        single steps."""
        given = {"weight": self.pair_weight, "rate": self.pair_rate}
        return {name: 1.0 if value == "auto" else float(value) for name, value in given.items()}

    @property
    def learns_pairs(self) -> bool:
        """Whether next sentences or their order are to be predicted, where the corpus has pairs."""
        return not {"nsp", "sop"}.isdisjoint(self.objective.split("+"))

    @property
    def next_sentence(self) -> bool:
        """Whether next sentences are to be predicted, where the corpus has pairs."""
        return "nsp" in self.objective.split("+")

    @property
    def starts_from(self) -> str | None:
        """The folder of the model that the run starts from; None for a fresh one."""
        return self.teacher if self.init_from is None else self.init_from

    @property
    def layers_named(self) -> list[int]:
        """The numbers in `--keep-layers`; none for a word."""
        given = self.keep_layers
        return [] if isinstance(given, str) else [given] if isinstance(given, int) else list(given)

    @property
    def phases(self) -> list[tuple[float, Self]]:
        """The run's parts, each with examples of one length: the share of the budget at its end, and its settings."""
        lengths, size = self.examples.lengths, self.batch_size
        shares = self.length_shares or (LENGTH_SHARES if len(lengths) > 1 else (1.0,))
        # 0.1 and 0.2 are 0.30000000000000004, which 3 of 10 steps are not.
        ends = [*(round(end, 9) for end in accumulate(shares[:-1])), 1.0]
        sizes = size if isinstance(size, tuple) else (size,) * len(lengths)
        of_one_length = {"length_shares": (), "shifted_share": 0.0}
        return [
            (end, replace(self, examples=self.examples.of_length(length), batch_size=size, **of_one_length))
            for end, length, size in zip(ends, lengths, sizes, strict=True)
        ]

    @property
    def mask_shares(self) -> tuple[float, float]:
        """Of the tokens that are predicted, at the start of the budget and at its end; of resolved settings."""
        given = self.mask_share
        first, last = given if isinstance(given, tuple) else (given, given)
        return float(first), float(last)

    def _check_mask_share(self) -> None:
        given = self.mask_share if isinstance(self.mask_share, tuple) else (self.mask_share,)
        if len(given) > 2:
            raise PretrainError(
                f"--mask-share has {len(given)} numbers: give one, or one for the start and one for the end"
            )
        for share in given:
            if share != "auto" and not 0.01 <= share <= 0.9:
                raise PretrainError(f"--mask-share {share} is out of range: give 0.01 to 0.9")

    def _check_packing(self) -> None:
        if self.packing == "full-sentences" and self.learns_pairs:
            raise PretrainError(
                f"--packing full-sentences makes no pairs, which --objective {self.objective} learns from: give "
                "--objective mlm too"
            )

    def _check_objective(self) -> None:
        for name, only in FIXED.get(self.objective, {}).items():
            given = getattr(self, name)
            if given not in ("auto", only):
                option = f"{option_name(name)} {given}"
                raise PretrainError(f"{option} cannot be combined with --objective {self.objective}, which needs "
                                    f"{only}: leave it out")  # fmt: skip

    def _check_lengths(self) -> None:
        count, shares = len(self.examples.lengths), self.length_shares
        if isinstance(self.batch_size, tuple) and len(self.batch_size) != count:
            raise PretrainError(f"--batch-size has {len(self.batch_size)} numbers for {count} sequence lengths")
        if not shares and count not in (1, 2):
            raise PretrainError(f"--sequence-length has {count} lengths: give each its share as --length-shares")
        if self.shifted_share != "auto" and not 0 <= self.shifted_share <= 1:
            raise PretrainError(f"--shifted-share {self.shifted_share} is out of range: give 0 to 1")
        if count == 1 and self.shifted_share not in ("auto", 0):
            raise PretrainError(
                "--shifted-share is for several lengths: leave it out, or give --sequence-length 128,512"
            )
        if shares and len(shares) != count:
            raise PretrainError(f"--length-shares has {len(shares)} numbers for {count} sequence lengths")
        if shares and not (all(share > 0 for share in shares) and abs(sum(shares) - 1) <= 1e-6):
            raise PretrainError("--length-shares are to be more than 0 and to add up to 1, as 0.9,0.1")

    def _check_masking(self) -> None:
        needed = _MASKING_OF.get(self.objective, self.examples.masking)
        if self.examples.masking != needed:
            raise PretrainError(
                f"--objective {self.objective} cannot be combined with --masking {self.examples.masking}: give "
                f"--masking {needed}"
            )

    def _check_pairs(self) -> None:
        for name, (low, high) in _OF_PAIRS.items():
            value, option = getattr(self, name), option_name(name)
            if value == "auto":
                continue
            if not low <= value <= high:
                without = "" if value else ", or --objective mlm to learn nothing from pairs"
                raise PretrainError(f"{option} {value:g} is out of range: give {low} to {high}{without}")
            if value != 1 and not self.learns_pairs:
                raise PretrainError(f"{option} {value:g} is for --objective mlm+nsp or mlm+sop, which learn from "
                                    f"pairs, not {self.objective}: leave it out, or give {option} auto if a --config "
                                    "names it")  # fmt: skip

    def _check_muon(self) -> None:
        if self.optimizer == "adamw" and self.muon_of_heads:
            raise PretrainError("--muon-matrices layers+head is for --optimizer muon: leave it out, or give "
                                "--muon-matrices auto if a --config names it")  # fmt: skip

    def _check_compilation(self) -> None:
        if self.compile == "layers" and self.detect_anomaly:
            raise PretrainError("--detect-anomaly looks into the layers, which needs --compile none: give that too")

    def _check_start(self) -> None:
        """What a model to start from brings, and what needs one."""
        named = self.layers_named
        if named != sorted(set(named)) or (named and named[0] < 0):
            raise PretrainError(f"--keep-layers {','.join(map(str, named))}: give numbers from 0 on, each once, rising")
        if self.starts_from is None:
            if self.keep_layers != "auto":
                raise PretrainError("--keep-layers has no layers to keep: give their BERT as --init-from or --teacher")
            return
        beside = {
            "preset": self.preset != "auto",
            "family": self.family != "auto",
            "vocab-size": self.prep.vocab_size != "auto",
            "min-documents": self.prep.min_documents != 1 and not self.prep.extend_vocab,
            "tokenizer": self.prep.tokenizer is not None,
            "no-lowercase": not self.prep.lowercase,
            "strip-accents": self.prep.strip_accents,
        }
        start = "--teacher" if self.init_from is None else "--init-from"
        for option in (option for option, given in beside.items() if given):
            raise PretrainError(f"--{option} cannot be combined with {start}, which brings its own: drop one")

    def _check_teacher(self) -> None:
        if self.teacher is None:
            for name in ("teacher_weights", "teacher_positions"):
                if getattr(self, name) != getattr(type(self), name):
                    raise PretrainError(f"{option_name(name)} is for a --teacher: give one, or leave it out")
            return
        weights = self.teacher_weights
        are_numbers = len(weights) == 3 and all(0 <= weight < math.inf for weight in weights)
        if not are_numbers or not weights[0] + weights[2]:
            raise PretrainError(
                "--teacher-weights are three numbers of 0 or more, as 5,2,1; the first or the last is more than 0"
            )
        if self.objective not in TAUGHT:
            raise PretrainError(
                f"--teacher goes with --objective {' or '.join(TAUGHT)}, not {self.objective}: drop one"
            )
        if self.softmax == "sampled":
            raise PretrainError("--softmax sampled leaves out words that a --teacher has probabilities for: drop one")
        if self.prep.extend_vocab:
            raise PretrainError("--extend-vocab adds entries that a --teacher does not know: drop one")

    def __post_init__(self):
        super().__post_init__()
        self._check_masking()
        self._check_lengths()
        self._check_mask_share()
        self._check_packing()
        self._check_objective()
        self._check_teacher()
        self._check_compilation()
        self._check_muon()
        self._check_pairs()
        if self.prepared is not None:
            for setting in fields(PrepSettings):
                # show_text does not change the corpus.
                if setting.name != "show_text" and getattr(self.prep, setting.name) != setting.default:
                    option = option_of(setting.name)
                    raise PretrainError(f"{option} cannot be combined with --prepared, which needs none: drop one")
        if self.prep.extend_vocab and not (self.init_from or self.prep.tokenizer):
            raise PretrainError("--extend-vocab has nothing to extend: give the BERT to continue from as --init-from")
        self._check_start()
