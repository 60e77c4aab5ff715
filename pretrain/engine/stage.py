"""What every stage begins with: its processes, its settings and those of an earlier run, and its output folder."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from data_prep.console import command_line
from data_prep.console.screen import say, without_reader
from data_prep.durable import SHOWN_BY_FINDER, require_folder, write_text

from .device import default_threads, fastest_precision, find_device, is_there, pays, tokens_at_once
from .distributed import World, joined
from .folder import claimed
from .process import Interruption
from .settings import Budget, LoopSettings, PretrainError

Settings = TypeVar("Settings", bound=LoopSettings)
Unused = Callable[[Mapping[str, Any]], set[str]]

SETTINGS_FILE = "settings.yaml"


@contextmanager
def stage(
    settings: Settings, out: Path, resolved: Callable[[], Settings]
) -> Iterator[tuple[Settings, World, Interruption]]:
    """The processes are joined, signals are watched, `out` is claimed, all for the time of the context, which goes on
    where whoever read the output has ended.

    Args:
        resolved: gives the settings without `auto`; the main process asks it, before `out` is made.

    Yields:
        (the settings that all processes have, the processes, the signals)

    Raises:
        PretrainError: another process holds `out`.
    """
    with joined(settings.device) as world, Interruption() as interruption, without_reader():
        settings = agreed(settings, world, resolved)
        with claimed(out) if world.is_main else nullcontext():
            yield settings, world, interruption


def agreed(settings: Settings, world: World, resolved: Callable[[], Settings]) -> Settings:
    """What the main process makes of the settings, for all."""

    def chosen() -> dict[str, Any]:
        return command_line.as_dict(resolved())

    return command_line.from_dict(type(settings), world.from_main(chosen))


def for_device(device: str) -> dict[str, Any]:
    """What `auto` becomes on a device, for the settings that depend on the machine alone."""
    return {
        "micro_batch_tokens": tokens_at_once(device),
        "precision": fastest_precision(device),
        "threads": default_threads(),
    }


def as_before(
    settings: Settings,
    out: Path,
    may_differ: set[str],
    unused: Unused = lambda settings: set(),
    earlier: Mapping[str, Any] | None = None,
) -> Settings | None:
    """The settings of the run that `out` holds, brought up to what is asked now; None if it holds no run.

    Args:
        may_differ: names of settings that do not decide the result. A budget among them may only grow.
        unused: settings -> names of those that others leave nothing to act on.
        earlier: settings that older versions did not have, with what their runs did.

    Raises:
        PretrainError: `out` holds something else, a run of other settings, or any run under `--resume never`.
        UserError: its settings were changed to something that they cannot be.
    """
    path = out / SETTINGS_FILE
    require_folder(out, PretrainError)
    if not path.exists():
        # A run that was killed before it began may have left these, and a file that it was writing.
        own = ("prepared", ".lock", SHOWN_BY_FINDER, f".{SETTINGS_FILE}.tmp", f"{SETTINGS_FILE}.tmp")
        if out.exists() and any(entry.name not in own for entry in out.iterdir()):
            raise PretrainError(f"{out} is not empty and holds no run of this tool: give another --out")
        return None
    if settings.resume == "never" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        raise PretrainError(f"{out} holds a run already: give another --out, or leave --resume never out")
    now = command_line.as_dict(settings)
    before = command_line.as_dict(type(settings)()) | dict(earlier or {}) | _read(path)
    if before.keys() - now.keys():
        raise PretrainError(f"{out} holds a run of another command, or of another version: give another --out")
    before = command_line.plain_values(type(settings), before, str(path))
    # Of a corpus that one of the two was given prepared the content decides.
    aside = unused(before) | unused(now)
    again = chosen_again(before, now)
    for sentence in again.values():
        say(sentence)
    kept = {name for name, value in now.items() if value == "auto" and name not in aside | again.keys()}
    now |= {name: before[name] for name in kept}
    aside |= may_differ | again.keys() | _same_paths(before, now)
    comparable = [{k: v for k, v in values.items() if k not in aside} for values in (before, now)]
    found = command_line.differences(*comparable)
    if "budget" in may_differ and not _extends(Budget.parse(before["budget"]), Budget.parse(now["budget"])):
        found.append(f"budget: {before['budget']} before, {now['budget']} now (it may only grow, in the same unit)")
    if found:
        raise PretrainError(
            f"{out} holds a run of other settings ({'; '.join(found)}): give another --out, or the same settings"
        )
    return command_line.from_dict(type(settings), now, source=str(path))


def say_begun(out: Path) -> None:
    """Say, of a plan, that `out` holds the run already, which has passed `as_before`."""
    if (out / SETTINGS_FILE).exists():
        say(f"{out} holds this run already: the command goes on from there, and the plan is of all of it.")


def write_settings(settings: LoopSettings, out: Path, without: Collection[str] = ()) -> None:
    """Write down the settings of a run. What it began with on another machine and this one cannot do stays as it is,
    so that the run takes it up again where it can.

    Args:
        without: names of settings that have nothing to act on.
    """
    path = out / SETTINGS_FILE
    if path.exists():
        before = command_line.as_dict(type(settings)()) | _read(path)
        kept = chosen_again(before, {"device": "auto", **dict.fromkeys(for_device("cpu"), "auto")})
        if settings.threads not in ("auto", default_threads()):
            # They were given.
            kept.pop("threads", None)
        settings = replace(settings, **{name: before[name] for name in kept})
    write_text(path, command_line.to_yaml(settings, without=without))


def _same_paths(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Names of the settings that spell the path of one folder or file in two ways."""
    return {
        name
        for name in ("init_from", "teacher", "model", "train", "validation", "test")
        if before.get(name) and now.get(name) and os.path.realpath(before[name]) == os.path.realpath(now[name])
    }


def chosen_again(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Settings that `auto` chose on a machine that could do what this one cannot: their names, each with a sentence.

    Threads are chosen again on each machine where the budget is a time: there they decide no more than the speed.
    """
    found = {}
    device = before["device"] if now["device"] == "auto" else now["device"]
    if device != "auto" and not is_there(device):
        found["device"] = f"The run was begun on {device}, which is not there: it continues on another device."
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


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, RecursionError, yaml.YAMLError) as error:
        raise PretrainError(f"{path} is damaged: write it again, or give another --out") from error
    if not isinstance(content, dict) or "budget" not in content:
        raise PretrainError(f"{path} is not the settings of a run: give another --out")
    return content


def _extends(before: Budget, now: Budget) -> bool:
    return now.unit == before.unit and now.amount >= before.amount
