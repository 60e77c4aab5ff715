"""What a path stands for: files, folders, globs, Hub data sets, and their names for people."""

import difflib
import errno
import glob
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import takewhile
from pathlib import Path

from ..errors import PrepError

FORMATS = "text (.txt), .jsonl, .csv, .tsv, each also with .gz, and .parquet"
# Files by which a folder is known that holds no text of an owner: a prepared corpus, a run, a model, a tokenizer.
_WRITTEN_BY_US = (
    {"prepared.json"}, {".work"}, {"settings.yaml", "metrics.jsonl"}, {"settings.yaml", "results.json"},
    {"config.json", "model.safetensors"}, {"tokenizer_config.json", "vocab.txt"},
)  # fmt: skip
# What makes text of documents; docs/your_text.md has the commands.
_CONVERTERS = {
    ".docx": "pandoc", ".odt": "pandoc", ".rtf": "pandoc", ".epub": "pandoc",
    ".html": "trafilatura", ".htm": "trafilatura", ".pdf": "pdfminer.six",
}  # fmt: skip
_LONGEST_SHOWN = 40
_SUFFIXES = {".txt": "txt", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv"}
# Of labelled texts alone: an array of objects, and a word and its tag in each line.
_LABELLED = {".json": "json", ".conll": "conll", ".iob": "conll", ".iob2": "conll", ".bio": "conll", ".bioes": "conll"}


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read. `name` never holds a folder above the one that was asked for: digest and report have it."""

    name: str
    path: str
    format: str
    """One of txt, jsonl, csv, tsv, parquet, hub, builtin; of labelled texts also json and conll."""
    compressed: bool = False
    size: int = 0
    """Bytes on disk, 0 if unknown."""
    written: int | None = None
    """When a file was last written to, in nanoseconds; None where that is not known (a pipe, the Hub)."""
    is_copy: bool = False
    """Whether `path` is a .jsonl.gz file with the rows of a Hub data set."""
    given: str = ""
    """The path as a person can find it: what was asked for, and the way to the file from there."""

    @property
    def shown(self) -> str:
        """What messages call it; two files of one name in two folders are told apart."""
        return self.given or self.name

    @property
    def has_rows(self) -> bool:
        """Whether it holds rows with columns rather than plain text."""
        return self.format not in ("txt", "builtin")

    @property
    def bytes_of_text(self) -> int:
        """About how much text a file holds; text is compressed to a third."""
        return self.size * 3 if self.compressed else self.size

    @property
    def is_on_disk(self) -> bool:
        """Whether `path` is a file."""
        return self.is_copy or self.format not in ("hub", "builtin")

    @property
    def is_decoded(self) -> bool:
        """Whether its text is in an encoding that a person can name; parquet files and data sets say their own."""
        return self.format not in ("parquet", "hub", "builtin")


class Exclusion:
    """Files that a person leaves out.

    Args:
        patterns: names of files, with * and ? for what varies: alone, below the folder that is read ("drafts/a.txt"),
            or as a path; "drafts/" stands for all that is in a folder.
    """

    def __init__(self, patterns: Sequence[str] = ()):
        # A bracket is a letter of a name.
        self.patterns = {pattern: re.sub(r"\[", "[[]", pattern) + "*" * pattern.endswith("/") for pattern in patterns}
        self.unused = set(patterns)

    def covers(self, name: str, path: str) -> bool:
        """Whether a file is left out; `name` is its path below the folder that is read."""
        places = (name, path, os.path.normpath(path), os.path.basename(name))
        found = {given for given, pattern in self.patterns.items() if any(fnmatchcase(p, pattern) for p in places)}
        self.unused -= found
        return bool(found)

    def check(self, paths: Sequence[str]) -> None:
        """Raises PrepError where a pattern is that of no file in any of the paths that were read."""
        if self.unused:
            pattern = min(self.unused)
            raise PrepError(f"--exclude {pattern} names no file in {listing(paths, 3)}; look for its spelling")


def resolve(
    paths: Sequence[str], exclude: Exclusion | None = None, labelled: bool = False
) -> tuple[list[Source], list[str]]:
    """Every source in `paths`, each once, and the names of files in folders and globs of no known format.

    Args:
        labelled: whether formats are known that only labelled texts have (.json, .conll).

    Raises:
        PrepError: something is missing, of no known format, or holds no file that can be read.
    """
    if not paths:
        raise PrepError("no text is named; give files, folders, hub:owner/name or builtin")
    sources: dict[str, Source] = {}
    ignored: list[str] = []
    exclude = exclude or Exclusion()
    real_folder = cache(os.path.realpath)
    for path in map(os.fspath, paths):
        if path == "builtin":
            sources.setdefault(path, Source("builtin", path, "builtin"))
            continue
        if path.startswith("hub:"):
            place = path.removeprefix("hub:")
            if not place_and_parts(place)[0]:
                raise PrepError("hub: names no data set; give hub:owner/name")
            name = os.path.basename(place.rstrip("/")) if os.path.exists(place_and_parts(place)[0]) else place
            sources.setdefault(path, Source(name, place, "hub"))
            continue
        for name, file in _files(path, ignored, labelled, exclude):
            if exclude.covers(name, file):
                continue
            kind = file_format(name, labelled)
            if kind is None:
                known = f"{FORMATS}, .json or .conll" if labelled else FORMATS
                raise PrepError(f"{path} is of no known format; {_conversion([name])}give {known}")
            found = os.stat(file)
            written = found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None
            source = Source(_printable(name), file, *kind, found.st_size, written, given=_printable(file))
            folder, own_name = os.path.split(file)
            # Of a million files, few are links.
            place = os.path.realpath(file) if os.path.islink(file) else os.path.join(real_folder(folder), own_name)
            sources.setdefault(place, source)
    # What is of no known format is left out anyway.
    ignored = [name for name in ignored if not exclude.covers(name, name)]
    if not sources:
        raise PrepError(f"--exclude leaves nothing of {listing(paths, 3)}; leave fewer files out")
    return list(sources.values()), list(map(_printable, ignored))


def _files(path: str, ignored: list[str], labelled: bool, exclude: Exclusion) -> list[tuple[str, str]]:
    """(name, path) of the files that one argument stands for; those of no known format go to `ignored`.

    Raises:
        PrepError: there is none that can be read.
    """
    if os.path.isfile(path):
        return [(os.path.basename(path), path)]
    if os.path.isdir(path):
        if not labelled and _is_written_by_us(path, least=2):
            raise PrepError(f"{path} is the folder of a run or a model; give your text, or its folder")
        found, skips_ours = _folder(path, ignored, exclude), False
    else:
        found, skips_ours = _matching(path, ignored, labelled, exclude)
        if not found and not glob.has_magic(path):
            raise PrepError(f"{path} does not exist{_nearest_name(path)}")
    usable = []
    for name, file in found:
        # Many things are written as JSON: an array of rows is one that is named.
        also = labelled and (not name.endswith(".json") or path.endswith(".json"))
        if file_format(name, also):
            usable.append((name, file))
        else:
            ignored.append(name)
    if not usable:
        nothing = "only runs and models are there" if skips_ours else "nothing is there"
        others = f"{len(found)} files of other formats" if found else nothing
        names = [name for name, _ in found]
        arrays = labelled and any(name.endswith(".json") for name in names)
        remedy = _conversion(names) + (f"give {path}/*.json, if these hold rows, or " if arrays else "give ") + FORMATS
        raise PrepError(f"{path} holds no file that can be read ({others}); {remedy}")
    return usable


def _matching(
    pattern: str, ignored: list[str], labelled: bool, exclude: Exclusion
) -> tuple[list[tuple[str, str]], bool]:
    """(name, path) of the files that a pattern finds, in folders that it finds too, and whether it skipped folders of
    runs and models, as it does unless labelled texts are wanted: predictions are often saved there.

    These folders and links to folders go to `ignored`.
    """
    found: list[tuple[str, str]] = []
    links: dict[Path, None] = {}
    left_out: dict[Path, None] = {}
    begin, is_ours = _fixed_part(pattern), cache(_is_written_by_us)
    for match in sorted(_matches(pattern)):
        is_folder, place = os.path.isdir(match), Path(match)
        above = takewhile(lambda folder: folder != begin, (*([place] if is_folder else ()), *place.parents))
        inside = list(above) if glob.has_magic(pattern) else []
        if link := next((folder for folder in reversed(inside) if folder.is_symlink()), None):
            links[link] = None
            exclude.covers(place.name, match)
        elif not labelled and (ours := next(filter(is_ours, inside), None)):
            left_out[ours] = None
            exclude.covers(place.name, match)
        elif is_folder:
            found += _folder(match, ignored, exclude)
        # What a person names may be a pipe.
        elif os.path.isfile(match) or (os.path.exists(match) and not glob.has_magic(pattern)):
            found.append((os.path.basename(match), match))
        else:
            ignored.append(os.path.basename(match))
    below = [(folder, Path(os.path.relpath(folder, begin)).as_posix()) for folder in (*links, *left_out)]
    names = [name if folder in links else _left_out(name) for folder, name in below]
    ignored += [name for name in names if name not in ignored]
    return found, bool(left_out)


def _matches(pattern: str) -> set[str]:
    """What a pattern finds, as `glob.glob` does, but that ** leads into no link to a folder, which may lead round in a
    circle."""
    head, stars, tail = _first_stars(pattern)
    if not stars:
        return set(glob.glob(pattern))
    found = set()
    for start in glob.glob(head) if glob.has_magic(head) else [head]:
        for folder, folders, _ in os.walk(start or os.curdir):
            folders[:] = [name for name in folders if not name.startswith(".") and not _is_link(folder, name)]
            below = os.path.relpath(folder, start or os.curdir)
            place = start if below == os.curdir else os.path.join(start, below, "")
            found |= _matches(glob.escape(place) + (tail or "*"))
    return found


def _first_stars(pattern: str) -> tuple[str, str, str]:
    """What stands before the first part that is **, this part, and what stands behind it; all of it before, if there is
    none."""
    match = re.search(r"(?:^|(?<=/))\*\*(?:/+|$)", pattern)
    return (pattern[: match.start()], match[0], pattern[match.end() :]) if match else (pattern, "", "")


def _is_link(folder: str, name: str) -> bool:
    return os.path.islink(os.path.join(folder, name))


def _conversion(names: Iterable[str]) -> str:
    """What makes text of such files, for a message; "" where that is not known."""
    endings = Counter(os.path.splitext(name.lower())[1] for name in names)
    known = [ending for ending, _ in endings.most_common() if ending in _CONVERTERS]
    if not known:
        return ""
    return f"{known[0]} is made into text with {_CONVERTERS[known[0]]} (docs/your_text.md has the command), or "


def _folder(path: str, ignored: list[str], exclude: Exclusion) -> list[tuple[str, str]]:
    """(name, path) of the files in a folder and those in it, hidden ones left out.

    What is no file (a broken link, a link to a folder, which may lead round in a circle) goes to `ignored`, and folders
    in it that hold a prepared corpus, a run or a model.
    """

    def refuse(error: OSError) -> None:
        if exclude.covers(os.path.relpath(error.filename, path) + "/", error.filename + "/"):
            return
        name = _printable(os.path.relpath(error.filename, os.path.dirname(os.path.abspath(path))))
        raise PrepError(f"the folder {name} cannot be read ({error.strerror}); check its permissions") from None

    found = []
    for folder, folders, files in os.walk(path, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        ours = [name for name in folders if _is_written_by_us(os.path.join(folder, name))]
        ignored += [_left_out(Path(folder, name).relative_to(path).as_posix()) for name in ours]
        folders[:] = [name for name in folders if name not in ours]
        links = [name for name in folders if _is_link(folder, name)]
        for name in [*files, *links]:
            if name.startswith("."):
                continue
            file = Path(folder, name)
            shown = file.relative_to(path).as_posix()
            try:
                is_file = stat.S_ISREG(file.stat().st_mode)
            except OSError as error:
                # A link that leads nowhere, or round in a circle, is no file.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and not exclude.covers(
                    shown, str(file)
                ):
                    if file.is_symlink():
                        raise PrepError(
                            f"the link {_printable(shown)} cannot be followed ({error.strerror}); check the "
                            "permissions of where it leads"
                        ) from None
                    refuse(OSError(error.errno, error.strerror, folder))
                is_file = False
            if is_file:
                found.append((shown, str(file)))
            else:
                ignored.append(shown)
    return sorted(found)


def _left_out(folder: str) -> str:
    return f"{folder}/ (a run or a model)"


def _fixed_part(pattern: str) -> Path:
    """The folder that a pattern names before the first of its parts that varies."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))


def _is_written_by_us(folder: str | Path, least: int = 1) -> bool:
    """Whether a folder holds a prepared corpus, a run or a model.

    Args:
        least: how many files a mark has to name; an owner may have a file of one name alone.
    """
    try:
        names = set(os.listdir(folder))
    except OSError:
        return False
    return any(mark <= names for mark in _WRITTEN_BY_US if len(mark) >= least)


def _nearest_name(path: str) -> str:
    folder, name = os.path.split(os.path.normpath(path))
    if folder and not os.path.isdir(folder):
        return f": there is no folder {folder}"
    near = difflib.get_close_matches(name, sorted(os.listdir(folder or ".")), n=1, cutoff=0.5)
    return f"; the nearest name in its folder is {near[0]}" if near else "; nothing there has a similar name"


def file_format(name: str, labelled: bool = False) -> tuple[str, bool] | None:
    """(format, compressed) by the ending of a file's name, None for an ending that is not known (see `resolve`)."""
    stem, ending = os.path.splitext(name.lower())
    if ending == ".parquet":
        return "parquet", False
    compressed = ending == ".gz"
    if compressed:
        ending = os.path.splitext(stem)[1]
    known = _SUFFIXES | _LABELLED if labelled else _SUFFIXES
    return (known[ending], compressed) if ending in known else None


def place_and_parts(name: str) -> tuple[str, list[str]]:
    """("owner/name", ["configuration", "split"]) of "owner/name:configuration:split"; either may be missing."""
    place, *parts = re.split(":(?=[^/]*$)", name, maxsplit=2)
    return place, parts


def _printable(name: str) -> str:
    """The name without what a terminal, a page or UTF-8 cannot show: a line break, a byte of another encoding, half of
    a surrogate pair."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else "\ufffd" for char in name)


def listing(names: Iterable[str], most: int = 12) -> str:
    """Names for a message: the first ones, none longer than a person reads, and how many more there are.

    Of a path the end is shown.
    """
    names = list(names)
    shown = ", ".join(_short(_printable(str(name))) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _short(name: str) -> str:
    if len(name) <= _LONGEST_SHOWN:
        return name
    return f"...{name[3 - _LONGEST_SHOWN :]}" if "/" in name else f"{name[: _LONGEST_SHOWN - 3]}..."
