"""The files with which a model folder says how the vectors of its tokens become one of a text, as sentence-transformers
reads and writes them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from data_prep.durable import read_object, write_json
from data_prep.text.sources import listing

from ..settings import FinetuneError

Pooling = Literal["mean", "cls", "max"]

MODULES_FILE = "modules.json"
_LENGTH_FILE, _POOLING_FILE = "sentence_bert_config.json", "config.json"
# Of its earlier classes, one for each family; the first one that is there counts.
_LENGTH_FILES = (_LENGTH_FILE, *(f"sentence_{family}_config.json" for family in (
    "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")))  # fmt: skip
# [CLS], [SEP] and a token of the text.
_SHORTEST = 3
_POOLING_FOLDER = "1_Pooling"
_MODEL_FILE = "config_sentence_transformers.json"
# Spelled out by all of its versions; the latest also says "pooling_mode": "mean".
_FLAGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_KNOWN = ("Transformer", "Pooling", "Normalize")
_ELSEWHERE = "open it with sentence-transformers"


@dataclass(frozen=True)
class SentenceModel:
    """How a folder makes one vector of a text; a folder without these files takes the mean of all tokens.

    The mean is that of Reimers and Gurevych 2019, section 3: over [CLS], the tokens and [SEP].
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    """Whether vectors are scaled to length 1."""
    sequence_length: int | None = None
    """The longest sequence that is read, in tokens; None where the folder does not say."""
    folder: Path = Path()
    """Where in it the BERT is."""
    lowercase: bool = False
    """Whether texts are put in lower case, whatever the tokenizer does."""

    @classmethod
    def read(cls, folder: Path) -> "SentenceModel":
        """What a folder says.

        Raises:
            FinetuneError: it is damaged, or makes its vectors in another way.
        """
        if not (folder / MODULES_FILE).exists():
            return cls(sequence_length=_tokenizer_length(folder))
        places = _modules(folder)
        path = next((path for name in _LENGTH_FILES if (path := places["Transformer"] / name).exists()), None)
        found = {} if path is None else _object(path)
        length = found.get("max_seq_length")
        if path is not None and length is not None and (not isinstance(length, int) or length < _SHORTEST):
            raise _damaged(path)
        if isinstance(settings := found.get("processing_kwargs"), dict) and any(settings.values()):
            raise FinetuneError(f"{folder} gives its tokenizer settings of its own (processing_kwargs of {path.name}): "
                                f"{_ELSEWHERE}")  # fmt: skip
        _refuse_prompt_or_cut(folder)
        if "Normalize" in places:
            _refuse_other_parts(folder, places["Normalize"] / "config.json")
        return cls(
            _pooling(folder, places["Pooling"] / _POOLING_FILE),
            "Normalize" in places,
            length or _tokenizer_length(places["Transformer"]),
            places["Transformer"].relative_to(folder),
            bool(found.get("do_lower_case")),
        )

    @classmethod
    def found(cls, folder: Path) -> "SentenceModel | None":
        """The same; None for a folder that makes its vectors in another way."""
        try:
            return cls.read(folder)
        except FinetuneError:
            return None

    def write(self, folder: Path, hidden_size: int) -> None:
        """Say the same in a folder that holds the BERT itself."""
        modules = [("Transformer", ""), ("Pooling", _POOLING_FOLDER)]
        modules += [("Normalize", "2_Normalize")] if self.normalize else []
        entries = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
            for number, (name, path) in enumerate(modules)
        ]
        for _, path in modules:
            (folder / path).mkdir(exist_ok=True)
        write_json(folder / MODULES_FILE, entries)
        write_json(folder / _LENGTH_FILE, {"max_seq_length": self.sequence_length, "do_lower_case": False})
        flags = {flag: name == self.pooling for name, flag in _FLAGS.items()}
        write_json(folder / _POOLING_FOLDER / _POOLING_FILE, {"word_embedding_dimension": hidden_size, **flags})


def _modules(folder: Path) -> dict[str, Path]:
    """Module -> its folder."""
    path = folder / MODULES_FILE
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        found = {str(each["type"]).rpartition(".")[2]: folder / str(each["path"]) for each in entries}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise _damaged(path) from None
    if others := [name for name in found if name not in _KNOWN]:
        raise FinetuneError(f"{folder} makes its vectors with {listing(others)} too, which only sentence-transformers "
                            "knows: open it with that")  # fmt: skip
    if list(found) == ["Transformer"]:
        raise FinetuneError(f"{path} does not say how token vectors become one of a text, as that of a cross-encoder, "
                            "which scores pairs of texts: give a model for vectors")  # fmt: skip
    if list(found) != list(_KNOWN[: len(found)]) or not found:
        raise _damaged(path)
    for place in found.values():
        try:
            place.exists()
            is_inside = place.resolve().is_relative_to(folder.resolve())
        except (OSError, ValueError):
            # No name of a folder.
            raise _damaged(path) from None
        if not is_inside:
            raise FinetuneError(f"{path} names a folder outside of its own: copy the folder again")
    return found


def _pooling(folder: Path, path: Path) -> Pooling:
    found = _object(path)
    modes = found.get("pooling_mode", [name for name, flag in _FLAGS.items() if found.get(flag)] or "mean")
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or modes[0] not in get_args(Pooling):
        known = ", ".join(get_args(Pooling))
        raise FinetuneError(f"{folder} pools by {listing(modes)}, not by one of {known}: {_ELSEWHERE}")
    return modes[0]


def _refuse_prompt_or_cut(folder: Path) -> None:
    """Raises FinetuneError where a prompt stands before every text, or only the first numbers of a vector count."""
    found = read_object(folder / _MODEL_FILE) or {}
    prompts, name = found.get("prompts"), found.get("default_prompt_name")
    if isinstance(prompts, dict) and isinstance(name, str) and prompts.get(name):
        raise FinetuneError(f"{folder} puts a prompt before every text: {_ELSEWHERE}")
    if (length := found.get("truncate_dim")) is not None:
        raise FinetuneError(f"{folder} takes the first {length} numbers of its vectors alone: {_ELSEWHERE}")


def _refuse_other_parts(folder: Path, path: Path) -> None:
    """Raises FinetuneError where something else than the vector of a text is scaled to length 1."""
    found = read_object(path) or {}
    names = {found.get(name) or "sentence_embedding" for name in ("module_input_name", "module_output_name")}
    if names != {"sentence_embedding"}:
        raise FinetuneError(f"{folder} scales other vectors than those of texts to length 1: {_ELSEWHERE}")


def _tokenizer_length(folder: Path) -> int | None:
    """Where the tokenizer of transformers cuts texts."""
    found = (read_object(folder / "tokenizer_config.json") or {}).get("model_max_length")
    return found if isinstance(found, int) and found >= _SHORTEST else None


def _object(path: Path) -> dict[str, Any]:
    found = read_object(path)
    if found is None:
        raise _damaged(path)
    return found


def _damaged(path: Path) -> FinetuneError:
    return FinetuneError(f"{path} is damaged: copy the folder again")
