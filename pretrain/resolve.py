"""From what a person asked to what is done: `auto` values, the output folder, and an earlier run found in it."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from data_prep.console.screen import say
from data_prep.settings import PrepSettings
from model import PRESETS, BertConfig, parameter_count

from .engine.device import find_device, tokens_a_step
from .engine.optimizer import peak_learning_rate
from .engine.settings import Budget, PretrainError
from .engine.stage import for_device
from .layers import kept_layers
from .settings import FIXED, USUAL, WEIGHT_DECAY, PretrainSettings

# Peak learning rates of models to continue, as shares of that of a fresh one (docs/how_much.md): a whole model, and one
# whose MLM head is new, as that of an encoder for vectors.
CONTINUED, WITH_NEW_HEAD = 0.1, {"muon": 0.4, "adamw": 1.0}
# With 600 steps of the usual size half the size was better, with 1,050 worse for words (docs/performance.md).
# The speed that is known before a run is mostly too high, by up to half: this is for about 700.
_FEW_STEPS = 800
# Seconds of a budget from which on layers are compiled.
_LONG = 600
# Tokens of text, and how many times it is read at least, where more weight decay was seen to help, and how much.
_LITTLE, _OFTEN, _DECAY_OF_LITTLE = 1_500_000, 30, 0.4
PARAMETERS_A_TOKEN = 5
"""With more of them a model may learn its text by heart."""
# By size, of what `auto` chooses from on a GPU.
_FOR_GPU = ("micro", "mini", "small", "medium", "base")
# From the start of the budget to its end (measured on CPUs, for micro: docs/tried.md).
MASK_SHARE = (0.4, 0.15)
# Of the examples of all sequence lengths but the longest (docs/tried.md).
SHIFTED_SHARE = 0.25
# How much next sentences count, and at which share of the rate pooler and head learn: at all of it, the head shrinks
# before the encoder has anything to tell it (docs/tried.md).
_PAIR_WEIGHT, _PAIR_RATE = 0.35, 0.03
# What runs did that were begun by versions without these settings.
EARLIER = {"mask_share": 0.15, "softmax": "full", "shifted_share": 0.0, "muon_matrices": "layers", "pair_weight": 1.0,
           "pair_rate": 1.0}  # fmt: skip
# These do not decide the result; the corpus and its tokenizer are compared by content (the digest of what is prepared).
MAY_DIFFER = {
    "out", "resume", "dry_run", "workers", "corpus", "exclude", "validation_corpus", "prepared", "tokenizer",
    "checkpoint_every", "keep_checkpoints", "log_every", "detect_anomaly", "compile", "threads", "budget", "show_text",
}  # fmt: skip


def unused(settings: Mapping[str, Any]) -> set[str]:
    """Names of the settings that --prepared leaves nothing to act on: the corpus was prepared with others."""
    return {field.name for field in fields(PrepSettings)} if settings.get("prepared") else set()


def out_folder(settings: PretrainSettings) -> Path:
    """`--out`, or runs/ and the name of the corpus."""
    if settings.out != "auto":
        return Path(settings.out)
    source = settings.prepared or settings.prep.corpus[0]
    name = Path(source.removeprefix("hub:")).name.split(".")[0].strip("*?[] ")
    return Path("runs") / (name or "corpus")


def resolve(
    settings: PretrainSettings, config: BertConfig | None = None, has_mlm_head: bool = True
) -> PretrainSettings:
    """Choose every `auto` that concerns training, but what the corpus must be known for: the batch size, and on a GPU
    the preset and its learning rate (see `with_preset`).

    Args:
        config: of the model to start from, if there is one.
        has_mlm_head: whether that model has one.

    Raises:
        PretrainError: the device is not there, or layers are not compiled for it; the preset is unknown; the model is
            not of the objective's family, or has no such layer as `--keep-layers` names.
    """
    if config:
        _require_family(settings, config)
    device = find_device(settings.device)
    on_gpu = device == "cuda"
    if settings.compile == "layers" and not on_gpu:
        raise PretrainError(
            f"--compile layers is for a CUDA GPU, and the run would compute on {device}: give --compile none"
        )
    budget = settings.budget
    if budget == "auto":
        budget = "4m" if settings.prep.corpus == ("builtin",) and not settings.prepared else "30m"
    preset = settings.preset
    if preset == "auto" and config is None and not on_gpu:
        preset = _preset_for_cpu(Budget.parse(budget))
    # On a GPU the size of the text decides, which nobody knows yet.
    waits = preset == "auto" and config is None
    if config is None and not waits and preset not in PRESETS:
        raise PretrainError(f"--preset {preset!r} is unknown: {nearest(preset, list(PRESETS))}")
    optimizer = "muon" if settings.optimizer == "auto" else settings.optimizer
    share, why = 1.0, ""
    if config and settings.starts_from is not None:
        if settings.keep_layers == "auto":
            settings = replace(settings, keep_layers="half" if settings.init_from is None else "all")
        share, why = _share_of_rate(settings, optimizer, config, has_mlm_head)
    chosen = {
        "budget": budget,
        "mask_share": MASK_SHARE,
        "shifted_share": SHIFTED_SHARE if _has_new_positions(settings, config) else 0.0,
        "softmax": "sampled" if device == "cpu" and settings.teacher is None else "full",
        "learning_rate": "auto" if waits else peak_learning_rate(optimizer, _hidden_size(preset, config), share),
        **_of_heads(settings, optimizer),
        **for_device(device),
        **USUAL.get(settings.objective, {}),
        **{name: only for name, only in FIXED.get(settings.objective, {}).items() if name != "family"},
    }
    automatic = {name: value for name, value in chosen.items() if getattr(settings, name) == "auto"}
    if why and "learning_rate" in automatic:
        of = "" if share == 1 else f"{share:g} of "
        say(f"The learning rate is {of}that of a fresh model, {why} (--learning-rate sets another).")
    out = str(out_folder(settings))
    return replace(settings, device=device, preset=preset, optimizer=optimizer, out=out, **automatic)


def is_fresh_bert(settings: PretrainSettings) -> bool:
    """Whether a BERT learns words from scratch, with next sentences or without."""
    is_bert = settings.objective in ("mlm", "mlm+nsp") and settings.family in ("auto", "bert")
    return is_bert and settings.starts_from is None


def is_open(settings: PretrainSettings) -> bool:
    """Whether `resolve` left the preset to `with_preset`."""
    return settings.preset == "auto" and settings.starts_from is None


def with_preset(settings: PretrainSettings, tokens: int, vocab_size: int) -> PretrainSettings:
    """The settings with a preset where `resolve` left it open, and with what follows from it: the largest up to base
    of which a BERT has no more than `PARAMETERS_A_TOKEN` parameters for each of the `tokens` to learn from, at least
    micro."""
    if not is_open(settings):
        return settings
    counts = {name: parameter_count(BertConfig.from_preset(name, vocab_size)) for name in _FOR_GPU}
    fitting = [name for name, count in counts.items() if count <= PARAMETERS_A_TOKEN * tokens]
    return resolve(replace(settings, preset=fitting[-1] if fitting else _FOR_GPU[0]))


def _has_new_positions(settings: PretrainSettings, config: BertConfig | None) -> bool:
    """Whether only long examples of the run would reach some positions, and nothing knows them yet."""
    lengths, known = settings.examples.lengths, config.max_position_embeddings if config else 0
    # A teacher has not learned from shifted examples.
    return len(lengths) > 1 and known < lengths[-1] and settings.teacher is None


def _share_of_rate(
    settings: PretrainSettings, optimizer: str, config: BertConfig, has_mlm_head: bool
) -> tuple[float, str]:
    """The peak learning rate of a model to start from, as a share of that of a fresh one, and why it is another."""
    if len(kept_layers(settings, config.num_hidden_layers)) < config.num_hidden_layers:
        # It has more to learn (docs/relatives.md).
        return 1.0, ""
    return (CONTINUED, "as it has learned") if has_mlm_head else (WITH_NEW_HEAD[optimizer], "as its MLM head is new")


def _of_heads(settings: PretrainSettings, optimizer: str) -> dict[str, Any]:
    """How the heads of a fresh BERT learn under Muon, with next sentences or without; those of others learn as ever."""
    is_fresh = is_fresh_bert(settings) and optimizer == "muon"
    weight, rate = (_PAIR_WEIGHT, _PAIR_RATE) if is_fresh and settings.next_sentence else (1.0, 1.0)
    return {"muon_matrices": "layers+head" if is_fresh else "layers", "pair_weight": weight, "pair_rate": rate}


def _hidden_size(preset: str, config: BertConfig | None) -> int:
    return config.hidden_size if config else BertConfig.from_preset(preset, vocab_size=128).hidden_size


def _require_family(settings: PretrainSettings, config: BertConfig) -> None:
    """Raises PretrainError where the model to continue from is of a family that the objective is not learned with."""
    alone = {fixed["family"]: objective for objective, fixed in FIXED.items() if "family" in fixed}
    found, wanted = config.model_type, FIXED.get(settings.objective, {}).get("family")
    if wanted and found != wanted:
        raise PretrainError(f"{settings.starts_from} is of the type {found}, and --objective {settings.objective} can "
                            f"continue only from {wanted}: give such a model, or another --objective")  # fmt: skip
    if not wanted and found in alone:
        # No teacher goes with the objective of that family.
        remedy = f"--objective {alone[found]}" if settings.teacher is None else "a BERT as --init-from"
        raise PretrainError(f"{settings.starts_from} is of the type {found}, which --objective {settings.objective} "
                            f"does not go on with: give {remedy}")  # fmt: skip


def automatic_batch_size(device: str, example_tokens: float, seconds: float = math.inf, speed: float = 1.0) -> int:
    """Examples of `example_tokens` tokens on average that make a step of a good size, a multiple of 8.

    Where few such steps fit into a budget of time, half as many examples make twice as many steps, which learn more
    (measured: docs/performance.md).

    Args:
        seconds: of a budget of time.
        speed: examples that are trained on in a second, about.
    """
    size = max(8, round(tokens_a_step(device) / example_tokens / 8) * 8)
    return max(8, size // 16 * 8) if seconds * speed < _FEW_STEPS * size else size


def may_decay_more(settings: PretrainSettings, tokens: float) -> bool:
    """Whether more weight decay than usual was seen to help, if only the text is read often: of a fresh model under
    Muon, with little text (docs/how_much.md).

    Args:
        settings: resolved ones.
        tokens: of the text to learn from.
    """
    return settings.starts_from is None and settings.optimizer == "muon" and tokens <= _LITTLE


def automatic_weight_decay(epochs: float) -> float:
    """Of a run that `may_decay_more` and reads its text about so often."""
    if round(epochs) < _OFTEN:
        return WEIGHT_DECAY
    say(f"The weight decay is {_DECAY_OF_LITTLE:g}, as so little text is read about {epochs:.0f} times "
        "(--weight-decay sets another).")  # fmt: skip
    return _DECAY_OF_LITTLE


def compiles(settings: PretrainSettings, processes: int) -> bool:
    """Whether the layers are to be compiled. `auto` has them compiled where that was seen to pay and takes a small part
    of the run (docs/performance.md).

    Args:
        settings: resolved ones.
    """
    if settings.compile != "auto":
        return settings.compile == "layers"
    budget = Budget.parse(settings.budget)
    is_long = not budget.is_counted and budget.amount >= _LONG
    is_known = settings.device == "cuda" and settings.precision == "bf16" and not settings.dropout and processes == 1
    return is_known and is_long and not settings.detect_anomaly


def _preset_for_cpu(budget: Budget) -> str:
    """In ten minutes a narrow model learns more, as it sees three times the text (measured: docs/performance.md)."""
    return "micro" if budget.unit == "seconds" and budget.amount <= 600 else "mini"


def nearest(word: str, names: list[str]) -> str:
    """A remedy for a name that does not exist: the nearest one, and all of them."""
    from difflib import get_close_matches

    close = get_close_matches(word, names, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return f"{guess}there are {', '.join(names)}"
