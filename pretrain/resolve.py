"""From what a person asked to what is done: `auto` values, the output folder, and an earlier run found in it."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from data_prep.console import command_line
from data_prep.console.screen import say
from data_prep.settings import PrepSettings
from model import PRESETS, BertConfig

from .engine.budget import Budget
from .engine.device import fastest_precision, find_device, is_there, pays, tokens_a_step, tokens_at_once
from .engine.distributed import World
from .engine.errors import PretrainError
from .engine.machine import default_threads
from .engine.optimizer import peak_learning_rate
from .settings import LoopSettings, PretrainSettings

Settings = TypeVar("Settings", bound=LoopSettings)

SETTINGS_FILE = "settings.yaml"
# With 225 steps of the usual size half the size was better, with 340 worse for next sentences.
_FEW_STEPS = 300
# These do not decide the result; the corpus and its tokenizer are compared by content (the digest of what is prepared).
MAY_DIFFER = {
    "out", "resume", "dry_run", "workers", "corpus", "exclude", "validation_corpus", "prepared", "tokenizer",
    "checkpoint_every", "keep_checkpoints", "log_every", "detect_anomaly", "budget",
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


def agreed(settings: Settings, world: World, resolved: Callable[[], Settings]) -> Settings:
    """What the main process makes of the settings, for all."""

    def chosen() -> dict:
        return command_line.as_dict(resolved())

    return command_line.from_dict(type(settings), world.first(chosen))


def resolve(settings: PretrainSettings, config: BertConfig | None = None) -> PretrainSettings:
    """Choose every `auto` that concerns training, but the batch size, for which the corpus must be known.

    Args:
        config: of the model to continue from, if there is one.

    Raises:
        PretrainError: the device is not there, or the preset is unknown.
    """
    device = find_device(settings.device)
    on_gpu = device == "cuda"
    budget = settings.budget
    if budget == "auto":
        budget = "4m" if settings.prep.corpus == ("builtin",) and not settings.prepared else "30m"
    preset = settings.preset
    if preset == "auto" and config is None:
        preset = "base" if on_gpu else _preset_for_cpu(Budget.parse(budget))
    if config is None and preset not in PRESETS:
        raise PretrainError(f"--preset {preset!r} is unknown: {nearest(preset, list(PRESETS))}")
    hidden_size = config.hidden_size if config else BertConfig.from_preset(preset, vocab_size=128).hidden_size
    optimizer = "muon" if settings.optimizer == "auto" else settings.optimizer
    chosen = {
        "budget": budget,
        "learning_rate": peak_learning_rate(optimizer, hidden_size, is_trained=settings.init_from is not None),
        **for_device(device),
    }
    automatic = {name: value for name, value in chosen.items() if getattr(settings, name) == "auto"}
    if settings.init_from and "learning_rate" in automatic:
        say("The learning rate is a tenth of that of a fresh model (not measured: --learning-rate sets another).")
    out = str(out_folder(settings))
    return replace(settings, device=device, preset=preset, optimizer=optimizer, out=out, **automatic)


def for_device(device: str) -> dict[str, Any]:
    """What `auto` becomes on a device, for the settings that depend on the machine alone."""
    return {
        "micro_batch_tokens": tokens_at_once(device),
        "precision": fastest_precision(device),
        "threads": default_threads(),
    }


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


def _preset_for_cpu(budget: Budget) -> str:
    """In ten minutes a narrow model learns more, as it sees three times the text (measured: docs/performance.md)."""
    return "micro" if budget.unit == "seconds" and budget.amount <= 600 else "mini"


def nearest(word: str, names: list[str]) -> str:
    """A remedy for a name that does not exist: the nearest one, and all of them."""
    from difflib import get_close_matches

    close = get_close_matches(word, names, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return f"{guess}there are {', '.join(names)}"


def as_before(settings: Settings, out: Path, may_differ: set[str] = MAY_DIFFER) -> Settings | None:
    """The settings of the run that `out` holds, brought up to what is asked now; None if it holds no run.

    Args:
        may_differ: names of settings that do not decide the result. A budget among them may only grow.

    Raises:
        PretrainError: `out` holds something else, a run of other settings, or any run under `--resume never`.
    """
    path = out / SETTINGS_FILE
    if out.exists() and not out.is_dir():
        raise PretrainError(f"{out} is a file: give the name of a folder as --out")
    if not path.exists():
        # A run that was killed before it began may have left the others.
        own = ("prepared", ".lock", f"{SETTINGS_FILE}.tmp")
        if out.exists() and any(entry.name not in own for entry in out.iterdir()):
            raise PretrainError(f"{out} is not empty and holds no run of this tool: give another --out")
        return None
    if settings.resume == "never" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        raise PretrainError(f"{out} holds a run already: give another --out, or leave --resume never out")
    now = command_line.as_dict(settings)
    before = command_line.as_dict(type(settings)()) | _read(path)
    if before.keys() - now.keys():
        raise PretrainError(f"{out} holds a run of another command, or of another version: give another --out")
    # Of a corpus that one of the two was given prepared the content decides.
    aside = unused(before) | unused(now)
    again = chosen_again(before, now)
    for sentence in again.values():
        say(sentence)
    kept = {name for name, value in now.items() if value == "auto" and name not in aside | again.keys()}
    now |= {name: before[name] for name in kept}
    aside |= may_differ | again.keys()
    comparable = [{k: v for k, v in values.items() if k not in aside} for values in (before, now)]
    found = command_line.differences(*comparable)
    if "budget" in may_differ and not _extends(Budget.parse(before["budget"]), Budget.parse(now["budget"])):
        found.append(f"budget: {before['budget']} before, {now['budget']} now (it may only grow, in the same unit)")
    if found:
        raise PretrainError(
            f"{out} holds a run of other settings ({'; '.join(found)}): give another --out, or the same settings"
        )
    return command_line.from_dict(type(settings), now, source=str(path))


def chosen_again(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Settings that `auto` chose on a machine that could do what this one cannot: their names, each with a sentence.

    Threads are chosen again on each machine where the budget is a time: there they decide no more than the speed.
    """
    found = {}
    device = before["device"] if now["device"] == "auto" else now["device"]
    if device != "auto" and not is_there(device):
        found["device"] = f"The run was begun on {device}, which is not there: it goes on on another device."
        found["micro_batch_tokens"] = "The size of its micro-batches is chosen again."
        device = "auto"
    device = find_device(device)
    if before["precision"] != "auto" and not pays(before["precision"], device):
        found["precision"] = (
            f"The run was begun in {before['precision']}, for which {device} has no instructions here: it goes on in "
            f"{fastest_precision(device)}."
        )
    threads, cores = before["threads"], default_threads()
    is_counted = before["budget"] != "auto" and Budget.parse(before["budget"]).is_counted
    if threads not in ("auto", cores) and (not is_counted or threads > cores):
        found["threads"] = f"The run was begun with --threads {threads}: it goes on with {cores}."
    return {name: sentence for name, sentence in found.items() if now[name] == "auto"}


def _read(path: Path) -> dict:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PretrainError(f"{path} is damaged: write it again, or give another --out") from error
    if not isinstance(content, dict) or "budget" not in content:
        raise PretrainError(f"{path} is not the settings of a run: give another --out")
    return content


def _extends(before: Budget, now: Budget) -> bool:
    return now.unit == before.unit and now.amount >= before.amount
