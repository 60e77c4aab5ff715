"""Manifests: JSON files that list other files with their digests and carry a digest of themselves.

A file that was cut short, or has a single bit flipped, is found and named, the manifest included.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from .durable import file_digest, write_text

_SEAL = "blake2b"


class Damaged(ValueError):
    """A file that is not as it was written; the text is "PATH is ..." for a person."""


def write_sealed(path: Path, content: dict) -> None:
    """Write a manifest atomically: `content` as JSON, and the digest of it as the last entry."""
    write_text(path, _text(content))


def read_sealed(path: Path) -> dict:
    """The content of a manifest.

    Raises:
        Damaged: it is missing, or not byte for byte what `write_sealed` wrote.
    """
    try:
        # Bytes, because reading as text would take a foreign line end for ours.
        written = path.read_bytes()
        content = json.loads(written)
        is_sealed = isinstance(content, dict) and content.pop(_SEAL, None) is not None
        is_whole = is_sealed and written == _text(content).encode()
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged") from error
    if not is_whole:
        raise Damaged(f"{path} is damaged")
    return content


def _text(content: dict) -> str:
    body = json.dumps(content, indent=2, ensure_ascii=False)
    digest = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    return json.dumps(content | {_SEAL: digest}, indent=2, ensure_ascii=False) + "\n"


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
    """
    for name, fact in facts.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise Damaged(f"{path} lies outside of its folder")
        if not path.is_file():
            raise Damaged(f"{path} is missing")
        size = path.stat().st_size
        if size != fact["bytes"]:
            raise Damaged(f"{path} is damaged: {size:,} bytes instead of {fact['bytes']:,}")
        try:
            is_whole = not contents or file_digest(path) == fact["blake2b"]
        except OSError as error:
            raise Damaged(f"{path} cannot be read ({error.strerror})") from error
        if not is_whole:
            raise Damaged(f"{path} is damaged: its bytes are not those that were written")
