"""The first moments of a package: Ctrl-C ends a command with one word, what hides a package is said, and its names are
imported when they are asked for."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec

SCRIPTS = {
    "data_prep.run": "domain-bert-prep",
    "pretrain.run": "domain-bert-pretrain",
    "pretrain.fill_mask": "domain-bert-fill-mask",
    "pretrain.exposure": "domain-bert-exposure",
    "pretrain.distilbert": "domain-bert-distilbert",
    "finetune.run": "domain-bert-finetune",
    "finetune.predict": "domain-bert-predict",
    "finetune.choose": "domain-bert-choose",
    "finetune.embed": "domain-bert-embed",
    "finetune.search": "domain-bert-search",
}
"""The console script of each command. (The folder of a script comes first on its path, not that of the user.)"""

INTERRUPTED_EARLY = 130
"""Exit code of a command that Ctrl-C ended where nothing was to be saved (128 + SIGINT)."""


def begin(package: str, needs: Iterable[str] = ()) -> None:
    """To be called first in the package of a command; returns at once in a process that is no command of ours.

    Args:
        package: the folder of the package.
        needs: the other packages that the commands of this package import.

    Raises:
        SystemExit: something else is found under one of these names, which has been said.
    """
    if not _is_command():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    for name in needs:
        if place := _in_the_way(os.path.join(os.path.dirname(package), name)):
            script = SCRIPTS.get(_module())
            remedy = f"or give the command as {script}, which works here" if script else "or start from another folder"
            _say(f'error: {place} hides the package "{name}" of this program: rename it, {remedy}')
            raise SystemExit(2)


def offered(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562): a name is imported when it is first asked for.

    Args:
        package: its name.
        places: the modules in which its names are.
    """

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    return get, lambda: sorted(places)


def as_typed(text: str) -> str:
    """A text for the screen with its commands (`python -m` and a module) as this process was started: as console
    scripts, if it is one of them. They work where the modules are hidden."""
    if _script() is not None:
        for module, script in SCRIPTS.items():
            text = text.replace(f"python -m {module}", script)
    return text


def _script() -> str | None:
    """The console script that runs here, if one does."""
    name = os.path.basename(sys.argv[0]).removesuffix(".exe")
    return name if name in SCRIPTS.values() else None


def _is_command() -> bool:
    """Whether Python is looking for one of our modules for `python -m`, or runs a console script."""
    if "--multiprocessing-fork" in sys.orig_argv:
        return False
    return _module() is not None or _script() is not None


def _module() -> str | None:
    """The module that `python -m` was given, if it is one of the commands."""
    words = [word.removeprefix("-m") for word in sys.orig_argv] if sys.argv[0] == "-m" else []
    return next((word for word in words if word in SCRIPTS), None)


def _in_the_way(package: str) -> str | None:
    """The file or folder that Python finds under the name of this package's folder, unless it is the folder."""
    spec = find_spec(os.path.basename(package))
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or []) or [spec.origin]
    is_found = any(os.path.realpath(place) == os.path.realpath(package) for place in places)
    return None if is_found else places[0]


def _interrupt(number: int, frame) -> None:
    """End at once outside of `command_line.main` and while a module is imported, where there is nothing to put right.

    An exception that is raised in an import can be caught there, or kill the process with the signal after all.
    """
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == ("data_prep.console.command_line", "main"):
            raise KeyboardInterrupt
        frame = frame.f_back
    _say("interrupted")
    os._exit(INTERRUPTED_EARLY)


def _say(sentence: str) -> None:
    """To standard error; of several processes one speaks."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, f"{sentence}\n".encode(errors="backslashreplace"))
