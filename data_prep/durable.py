"""Files and folders that are there whole or not at all, also after a power cut; digests, and manifests.

A manifest is a JSON file that lists other files with their digests and carries a digest of itself: a file that was cut
short, or has a single bit flipped, is found and named, the manifest included.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ReadingFailed, UserError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No space, quota used up, file larger than allowed."""

SHOWN_BY_FINDER = ".DS_Store"
"""What macOS writes into a folder that somebody has looked into; such a folder may be empty all the same."""


@contextmanager
def replaced(path: Path, is_shared: bool = False) -> Iterator[Path]:
    """A temporary path for the block to write a file or a folder to, which is renamed to `path` once it is on disk.

    If the block raises, `path` stays as it was and the temporary path is removed. What a killed process leaves goes at
    the next time, and a folder that it had put aside comes back.

    Args:
        is_shared: other processes may write the same path at once, as no lock keeps them out: the last one wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp" if is_shared else f".{path.name}.tmp")
    old = path.with_name(f".{path.name}.old.tmp")
    _remove(temporary)
    _put_back(old, path)
    try:
        yield temporary
        for written in [*temporary.rglob("*"), temporary]:
            flush_to_disk(written)
        # A folder cannot be renamed over another; at no moment is neither on disk.
        if temporary.is_dir() and path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    finally:
        _put_back(old, path)
        _remove(temporary)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that, whenever the process ends, no part of it is left under its name.

    Files that cannot be removed yet (on NFS, those that a program has open) stay under a name that begins with a dot.
    """
    removed = folder.with_name(f".{folder.name}.removed.tmp")
    _remove(removed)
    os.replace(folder, removed)
    _remove(removed)


def _put_back(old: Path, path: Path) -> None:
    """Remove what was put aside; give it its name again if nothing else has got it."""
    if exists(old) and not exists(path):
        os.replace(old, path)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Return once a file's bytes, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush_descriptor(descriptor)
    finally:
        os.close(descriptor)


def flush_descriptor(descriptor: int) -> None:
    """As `flush_to_disk`, of a file that is open."""
    os.fsync(descriptor)
    # On macOS, that leaves bytes in the memory of the drive; some file servers know no more than it.
    if hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)


def require_new_file(path: str, error: type[UserError]) -> None:
    """Refuse, before the work is done, an `--out` that cannot be written, or that would replace what is there."""
    if Path(path).is_dir() or not Path(path).parent.is_dir():
        raise error(f"--out {path} cannot be written: give the name of a file in a folder that is there")
    if os.path.lexists(path):
        if not Path(path).is_file():
            raise error(f"--out {path} is no file, and would be replaced by one: give the name of a new file")
        raise error(f"--out {path} is there already, and would be lost: give another name, or remove it")


def require_folder(out: Path, error: type[UserError]) -> None:
    """Raises `error` where `out` can be no folder of results: a file, or a name that the libraries cannot open."""
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise error(f"the name of the folder {out} is not UTF-8 text: give another --out") from None
    if out.exists() and not out.is_dir():
        raise error(f"{out} is a file: give the name of a folder as --out")


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, whole or not at all."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_object(path: Path, **kinds: type) -> dict | None:
    """The JSON object in a file; None if there is none, or it lacks one of these keys with a value of this type."""
    try:
        # A pipe would be waited for.
        content = json.loads(path.read_bytes()) if path.is_file() else None
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    is_whole = isinstance(content, dict) and all(isinstance(content.get(key), kind) for key, kind in kinds.items())
    return content if is_whole else None


def file_digest(path: Path) -> str:
    """blake2b (128 bits) of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


_SEAL = "blake2b"


# Errors of a file server or a machine that may be over the next time; EIO is how a disk says that it has lost a part.
_PASSING = {
    errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ETIMEDOUT,
    errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
}  # fmt: skip


def _unread(path: Path, error: OSError) -> Exception:
    """Of a file that could not be read: that it is damaged, unless that may be over the next time."""
    why = f"{path} cannot be read ({error.strerror})"
    if error.errno in _PASSING:
        return ReadingFailed(f"{why}: give the same command again; if that does not help, remove it")
    return Damaged(why)


class Damaged(ValueError):
    """A file that is not as it was written; the text is "PATH is ..." for a person."""


def write_sealed(path: Path, content: dict) -> None:
    """Write a manifest atomically: `content` as JSON, and the digest of it as the last entry."""
    write_text(path, _sealed_text(content))


def read_sealed(path: Path) -> dict:
    """The content of a manifest.

    Raises:
        Damaged: it is missing, or not byte for byte what `write_sealed` wrote.
        ReadingFailed: the machine could not read it.
    """
    try:
        # Bytes, because reading as text would take a foreign line end for ours.
        written = path.read_bytes()
        content = json.loads(written)
        is_sealed = isinstance(content, dict) and content.pop(_SEAL, None) is not None
        is_whole = is_sealed and written == _sealed_text(content).encode()
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing") from error
    except OSError as error:
        raise _unread(path, error) from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged") from error
    if not is_whole:
        raise Damaged(f"{path} is damaged")
    return content


def _sealed_text(content: dict) -> str:
    body = json.dumps(content, indent=2, ensure_ascii=False)
    digest = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    return json.dumps(content | {_SEAL: digest}, indent=2, ensure_ascii=False) + "\n"


def exists(path: Path) -> bool:
    """Whether there is a file or a folder of this name.

    Raises:
        OSError: that cannot be told, as of a file server that is away; `Path.exists` says no then from Python 3.14 on.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict]:
    """Size and digest of files, by their path relative to the folder."""
    facts = {}
    for name in names:
        path = folder / name
        facts[name] = {"bytes": path.stat().st_size, "blake2b": file_digest(path)}
    return facts


def check_files(folder: Path, facts: dict[str, dict], contents: bool = True) -> None:
    """Compare files with what `file_facts` found when they were written.

    Args:
        contents: compare the digests (about a second a gigabyte), not the sizes alone.

    Raises:
        Damaged: one is missing, cut short, or changed, or lies elsewhere.
        ReadingFailed: the machine could not read one.
    """
    for name, fact in facts.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise Damaged(f"{path} lies outside of its folder")
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise Damaged(f"{path} is missing") from None
        except OSError as error:
            raise _unread(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{path} is no file")
        size = found.st_size
        if size != fact["bytes"]:
            raise Damaged(f"{path} is damaged: {size:,} bytes instead of {fact['bytes']:,}")
        try:
            is_whole = not contents or file_digest(path) == fact["blake2b"]
        except OSError as error:
            raise _unread(path, error) from error
        if not is_whole:
            raise Damaged(f"{path} is damaged: its bytes are not those that were written")
