"""The files of a tokenizer, read and checked: a folder of ours or of transformers, or a bare vocab.txt."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from ..errors import PrepError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; a longer word is [UNK], as in the original BERT
# Of a character beyond U+FFFF: halves without the other one are no text.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_OPTIONS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
# What transformers takes where tokenizer_config.json does not say.
_DEFAULTS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Lists of names in tokenizer_config.json and special_tokens_map.json.
_FURTHER = ("additional_special_tokens", "extra_special_tokens")


@dataclass
class TokenizerFiles:
    """What the files of a tokenizer say.

    Attributes:
        pieces: the vocabulary of WordPiece, in the order of its ids.
        options: those of `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` that are stated; None for
            accents stands for what lower-casing is.
        added: the added tokens besides the five special ones, in the order of their ids, which are those of pieces or
            follow them.
        longest_word: characters of a word; a longer one is [UNK].
    """

    pieces: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    added: list[AddedToken] = field(default_factory=list)
    longest_word: int = LONGEST_WORD


def read_tokenizer(path: Path) -> TokenizerFiles:
    """Read a folder or a vocab.txt.

    Raises:
        PrepError: it does not hold a complete WordPiece tokenizer of a BERT.
    """
    if not path.is_dir():
        found, source = TokenizerFiles(_read_vocabulary(path)), path
    else:
        found, source = _read_folder(path)
    _check_vocabulary(found.pieces, source)
    stated = {name: value for name, value in found.options.items() if value is not None or name == "strip_accents"}
    for name, value in stated.items():
        if not isinstance(value, bool | None):
            raise PrepError(f"{path}: {name} is {value!r:.40}, not true or false: restore the file that says so")
    found.options = stated
    return found


def _read_folder(folder: Path) -> tuple[TokenizerFiles, Path]:
    """What the files of a folder say, and the file that the vocabulary is from."""
    names = ("tokenizer_config.json", "tokenizer.json", "vocab.txt", "added_tokens.json", "special_tokens_map.json")
    for path in (folder / name for name in names):
        if leads_out(path):
            raise PrepError(f"{path} is a link out of its folder: copy the file itself into the folder")
    config_file, full, plain = (folder / name for name in names[:3])
    config = _read_json(config_file) if config_file.exists() else {}
    options = {name: config[name] for name in _OPTIONS if name in config}
    if full.exists():
        content = _read_json(full)
        found = _interpreted(full, content)
        # transformers rebuilds a BertTokenizer from the vocabulary and tokenizer_config.json alone; its
        # general classes take tokenizer.json as it is.
        general = config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
        if config and not general:
            found.options = {**_DEFAULTS, **options}
        given_by_config = "added_tokens_decoder" in config and not general
        added = (config_file, config) if given_by_config else (full, content)
    elif plain.exists():
        found = TokenizerFiles(_read_vocabulary(plain), {**_DEFAULTS, **options} if config else {})
        added = (config_file, config) if "added_tokens_decoder" in config else _old_files(folder)
    else:
        raise PrepError(
            f"{folder} holds neither tokenizer.json nor vocab.txt: give the folder of a BERT tokenizer, or a vocab.txt"
        )
    found.added = _added_tokens(*added, found.pieces, _further_tokens(folder, config))
    return found, full if full.exists() else plain


def leads_out(path: Path) -> bool:
    """Whether a file is a link out of its folder. The cache of the Hub keeps the files of "snapshots" in "blobs"."""
    place, folder = path.resolve(), path.parent.resolve()
    is_cached = place.parent.name == "blobs" and folder.is_relative_to(place.parents[1] / "snapshots")
    return not place.is_relative_to(folder) and not is_cached


def _interpreted(path: Path, content: dict[str, Any]) -> TokenizerFiles:
    """What a tokenizer.json says, its added tokens left out."""
    parts = {name: content.get(name) or {} for name in ("model", "normalizer", "pre_tokenizer")}
    if not all(isinstance(part, dict) for part in parts.values()):
        raise _in_no_form(path)
    # Files written before 2021 leave the model's type out; only WordPiece has this field.
    untyped = "WordPiece" if "max_input_chars_per_word" in parts["model"] else None
    found = {name: part.get("type", untyped if name == "model" else None) for name, part in parts.items()}
    wanted = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
    prefix = parts["model"].get("continuing_subword_prefix", "##")
    for name, kind in [*wanted.items(), ("continuing prefix", "##")]:
        if found.get(name, prefix) != kind:
            raise PrepError(
                f"{path} is not a BERT WordPiece tokenizer, its {name} is {found.get(name, prefix)}, "
                f"not {kind}: give the tokenizer of a BERT, or train a vocabulary"
            )
    ids, said = parts["model"].get("vocab"), parts["normalizer"]
    if not _is_vocabulary(ids) or not {"lowercase", "handle_chinese_chars"} <= said.keys():
        raise _in_no_form(path)
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(ids))):
        raise PrepError(f"{path}: the ids of its vocabulary do not run from 0 to {len(ids) - 1}: save it again")
    longest = parts["model"].get("max_input_chars_per_word", LONGEST_WORD)
    if type(longest) is not int or not 0 < longest < 1 << 31:
        raise PrepError(
            f"{path}: max_input_chars_per_word is {longest!r:.40}, not a count of characters: save it again"
        )
    options = {"do_lower_case": said["lowercase"], "strip_accents": said.get("strip_accents")}
    return TokenizerFiles(
        pieces, {**options, "tokenize_chinese_chars": said["handle_chinese_chars"]}, longest_word=longest
    )


def _is_vocabulary(ids: Any) -> bool:
    return isinstance(ids, dict) and all(type(number) is int for number in ids.values())


def _old_files(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The added tokens of a folder written before 2023, in the form of today's tokenizer_config.json."""
    path = folder / "added_tokens.json"
    ids = _read_json(path) if path.exists() else {}
    special = _further_tokens(folder, {})
    return path, {
        "added_tokens_decoder": {
            str(number): {"content": name, "normalized": name not in special, "special": name in special}
            for name, number in ids.items()
        }
    }


def _further_tokens(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The names of special tokens besides the five, from tokenizer_config.json and special_tokens_map.json."""
    path = folder / "special_tokens_map.json"
    found = []
    for content in (config, _read_json(path) if path.exists() and "added_tokens_decoder" not in config else {}):
        for name in _FURTHER:
            entries = content.get(name) or ()
            entries = entries.values() if isinstance(entries, dict) else entries
            if not isinstance(entries, Iterable) or isinstance(entries, str):
                raise _in_no_form(folder)
            found += [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    if not all(isinstance(name, str) for name in found):
        raise _in_no_form(folder)
    return list(dict.fromkeys(found))


def _added_tokens(path: Path, content: dict[str, Any], pieces: Sequence[str], further: list[str]) -> list[AddedToken]:
    """The added tokens besides the five, by id; those of tokenizer.json or of tokenizer_config.json."""
    listed = [(number, _added_token(token)) for number, token in _listed(content)]
    if not all(token and len(str(number)) < 20 and str(number).isdecimal() for number, token in listed):
        raise _in_no_form(path)
    tokens = sorted(((int(number), token) for number, token in listed), key=lambda each: each[0])
    tokens = [(number, token) for number, token in tokens if token.content not in SPECIAL_TOKENS]
    ids = {piece: number for number, piece in enumerate(pieces)}
    for number, token in tokens:
        expected = ids.setdefault(token.content, len(ids))
        if number != expected:
            raise PrepError(
                f"{path} gives the added token {token.content!r} the id {number} instead of {expected}: the ids of "
                "added tokens are those of vocabulary entries, or follow the last one without a gap; save it again"
            )
    known = {*SPECIAL_TOKENS, *(token.content for _, token in tokens)}
    return [token for _, token in tokens] + [_special(name) for name in further if name not in known]


def _listed(content: dict[str, Any]) -> Iterable[tuple[Any, Any]]:
    """(id, token) of the added tokens as they stand there; one of None where they are in another form."""
    listed = content.get("added_tokens_decoder", content.get("added_tokens") or [])
    if isinstance(listed, list) and all(isinstance(token, dict) for token in listed):
        return [(token.get("id"), token) for token in listed]
    return listed.items() if isinstance(listed, dict) else [(None, None)]


def _added_token(stated: Any) -> AddedToken | None:
    """None where it is in another form."""
    content = stated.get("content") if isinstance(stated, dict) else None
    flags = {name: stated[name] for name in _FLAGS if content and name in stated}
    is_whole = content and isinstance(content, str) and all(isinstance(flag, bool) for flag in flags.values())
    return AddedToken(content, **flags) if is_whole else None


def _special(name: str) -> AddedToken:
    return AddedToken(name, special=True, normalized=False)


def _in_no_form(path: Path) -> PrepError:
    return PrepError(f"{path} is not a tokenizer in the form of transformers: restore it, or train a vocabulary")


def _read_vocabulary(path: Path) -> list[str]:
    return _read_text(path).removesuffix("\n").split("\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = _read_text(path)
        content = json.loads(text)
        if _HALF.search(text):
            # Raises where one stands alone.
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise PrepError(f"{path} is not valid JSON at line {error.lineno}: restore it, or train a vocabulary") from None
    except (ValueError, RecursionError):
        raise PrepError(f"{path} is not JSON that can be read: restore it, or train a vocabulary") from None
    if not isinstance(content, dict):
        raise PrepError(f"{path} does not hold a JSON object: restore it, or train a vocabulary")
    return content


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PrepError(
            f"cannot read {path} ({error.strerror}): give the folder of a BERT tokenizer, or a vocab.txt"
        ) from None
    except UnicodeDecodeError as error:
        raise PrepError(f"{path} is not UTF-8 at byte {error.start}: give a vocab.txt or a tokenizer folder") from None


def _check_vocabulary(vocabulary: Sequence[str], source: Path) -> None:
    lines: dict[str, int] = {}
    for number, piece in enumerate(vocabulary, start=1):
        if lines.setdefault(piece, number) != number:
            raise PrepError(f"{source} holds {piece!r} twice, as entries {lines[piece]} and {number}: remove one")
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise PrepError(
            f"{source} lacks the special tokens {', '.join(missing)}: give the vocabulary of a BERT, or train one"
        )
