"""BERT's WordPiece tokenizer: text to ids and back, and the folder that transformers opens."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .errors import PrepError
from .files import leads_out, write_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; a longer word is [UNK], as in the original BERT
_UNUSED = re.compile(r"\[unused_?\d+\]")
_BRACKETED = re.compile(r"\[.+\]")  # a token with a role, never the outcome of normalising text


def bert_normalizer(
    lowercase: bool, strip_accents: bool, split_chinese: bool = True
) -> normalizers.BertNormalizer:
    """BERT's cleaning of text before it is cut into words."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_chinese, strip_accents=strip_accents, lowercase=lowercase
    )


def build_tokenizer(
    vocabulary: Sequence[str], lowercase: bool, strip_accents: bool, split_chinese: bool = True
) -> Tokenizer:
    """BERT's tokenizer of `tokenizers` over a vocabulary that contains the five special tokens."""
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(
        models.WordPiece(
            ids, unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=LONGEST_WORD
        )
    )
    tokenizer.normalizer = bert_normalizer(lowercase, strip_accents, split_chinese)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


class WordPieceTokenizer:
    """A vocabulary with its options, and the facts about its entries that the pipeline needs.

    `starts_word` bool [V]: the piece does not begin with `##`. `is_ordinary` bool [V]: neither one of the
    five special tokens nor an [unused...] slot. Pickles as vocabulary and options: cheap to send to a worker.
    """

    def __init__(
        self, vocabulary: Sequence[str], lowercase: bool, strip_accents: bool, split_chinese: bool = True
    ) -> None:
        self.vocabulary = tuple(vocabulary)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese = split_chinese
        self._tokenizer = build_tokenizer(self.vocabulary, lowercase, strip_accents, split_chinese)
        # In a corpus "[MASK]" is six characters that somebody wrote, not a hole to be filled.
        self._tokenizer.encode_special_tokens = True
        ids = [self.vocabulary.index(token) for token in SPECIAL_TOKENS]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids
        self.starts_word = np.array([not piece.startswith("##") for piece in self.vocabulary])
        self.is_ordinary = np.array([not _UNUSED.fullmatch(piece) for piece in self.vocabulary])
        self.is_ordinary[ids] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.vocabulary, self.lowercase, self.strip_accents, self.split_chinese)

    @property
    def vocab_size(self) -> int:
        """Number of entries V."""
        return len(self.vocabulary)

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Ids of each sentence, without special tokens, on all cores; a literal "[MASK]" is plain text."""
        encodings = self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def extended(self, entries: Sequence[str]) -> "WordPieceTokenizer":
        """The same with further entries behind its own."""
        vocabulary = (*self.vocabulary, *entries)
        return WordPieceTokenizer(vocabulary, self.lowercase, self.strip_accents, self.split_chinese)

    def begins_with(self, other: "WordPieceTokenizer") -> bool:
        """Whether this is the other one, or that extended."""
        entries = self.vocabulary[other.vocab_size :]
        return self.digest() == other.extended(entries).digest()

    def normalise(self, text: str) -> str:
        """The text as the vocabulary sees it: cleaned, in lower case where that is asked for."""
        return self._tokenizer.normalizer.normalize_str(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def digest(self) -> str:
        """sha256 (hex) of everything that decides ids: the vocabulary in order and the options."""
        facts = [self.vocabulary, self.lowercase, self.strip_accents, self.split_chinese, LONGEST_WORD]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def save(self, folder: str | Path, model_max_length: int) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, each atomically, for transformers.

        `model_max_length` is the longest sequence of the model, in tokens. Equal tokenizers give equal bytes.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.split_chinese,
            "model_max_length": model_max_length,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
        }
        write_text(folder / "vocab.txt", "".join(piece + "\n" for piece in self.vocabulary))
        write_text(folder / "tokenizer.json", self._tokenizer.to_str(pretty=True) + "\n")
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "WordPieceTokenizer":
        """Open a tokenizer folder of ours or of transformers, or a bare vocab.txt.

        Where the files do not say whether to lower-case or to strip accents (a bare vocab.txt), `lowercase`
        does, or else the entries: an option that would change one of them cannot have been on.
        Raises PrepError for a path that does not hold a complete WordPiece tokenizer.
        """
        path = Path(path)
        if path.is_dir():
            source, vocabulary, options = _read_folder(path)
        else:
            source, vocabulary, options = path, _read_vocabulary(path), {}
        _check_vocabulary(vocabulary, source)
        options = {name: value for name, value in options.items() if value is not None or name == "strip_accents"}
        for name, value in options.items():
            if not isinstance(value, bool | None):
                raise PrepError(f"{path}: {name} is {value!r:.40}, not true or false: restore the file that says so")
        lower = options.get("do_lower_case", lowercase)
        if lower is None:
            lower = _unchanged(vocabulary, lowercase=True, strip_accents=False)
        if "strip_accents" not in options:
            strip = lower and _unchanged(vocabulary, lowercase=False, strip_accents=True)
        else:
            strip = lower if options["strip_accents"] is None else options["strip_accents"]
        return cls(vocabulary, lower, strip, options.get("tokenize_chinese_chars", True))


def _unchanged(vocabulary: Sequence[str], lowercase: bool, strip_accents: bool) -> bool:
    normalizer = normalizers.BertNormalizer(False, False, strip_accents=strip_accents, lowercase=lowercase)
    return all(normalizer.normalize_str(p) == p for p in vocabulary if not _BRACKETED.fullmatch(p))


def _read_folder(folder: Path) -> tuple[Path, list[str], dict[str, Any]]:
    """The file the vocabulary came from, the vocabulary, and the options that the folder states."""
    config_file, full, plain = (folder / n for n in ("tokenizer_config.json", "tokenizer.json", "vocab.txt"))
    for path in (config_file, full, plain):
        if leads_out(path):
            raise PrepError(f"{path} is a link out of its folder: copy the file itself into the folder")
    config = _read_json(config_file) if config_file.exists() else {}
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    options = {name: config[name] for name in names if name in config}
    if full.exists():
        vocabulary, stated = _read_tokenizer_json(full)
        # transformers rebuilds a BertTokenizer from the vocabulary and tokenizer_config.json alone; its
        # general classes take tokenizer.json as it is.
        general = config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
        return full, vocabulary, stated if general else {**stated, **options}
    if not plain.exists():
        raise PrepError(
            f"{folder} holds neither tokenizer.json nor vocab.txt: "
            "give the folder of a BERT tokenizer, or a vocab.txt"
        )
    defaults = {"do_lower_case": True, "strip_accents": None} if config else {}
    return plain, _read_vocabulary(plain), {**defaults, **options}


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    content = _read_json(path)
    try:
        return _interpreted(path, content)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise PrepError(
            f"{path} is not a tokenizer in the form of transformers: restore it, or train a vocabulary"
        ) from None


def _interpreted(path: Path, content: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The vocabulary and the options of a tokenizer.json; raises what Python raises where its form is another."""
    parts = {name: content.get(name) or {} for name in ("model", "normalizer", "pre_tokenizer")}
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
    ids: dict[str, int] = parts["model"]["vocab"]
    vocabulary = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in vocabulary] != list(range(len(ids))):
        raise PrepError(
            f"{path}: the ids of its vocabulary do not run from 0 to {len(ids) - 1}: save it anew"
        )
    added = [token for token in content.get("added_tokens", []) if token["content"] not in ids]
    if added:
        raise PrepError(
            f"{path} has {len(added)} added tokens outside its vocabulary (first: {added[0]['content']!r}): "
            "put them into the vocabulary, for example in place of [unused] entries, and save it anew"
        )
    said = parts["normalizer"]
    options = {"do_lower_case": said["lowercase"], "strip_accents": said.get("strip_accents")}
    return vocabulary, {**options, "tokenize_chinese_chars": said["handle_chinese_chars"]}


def _read_vocabulary(path: Path) -> list[str]:
    return _read_text(path).removesuffix("\n").split("\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise PrepError(
            f"{path} is not valid JSON at line {error.lineno}: restore it, or train a vocabulary"
        ) from None
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
        raise PrepError(
            f"{path} is not UTF-8 at byte {error.start}: give a vocab.txt or a tokenizer folder"
        ) from None


def _check_vocabulary(vocabulary: Sequence[str], source: Path) -> None:
    lines: dict[str, int] = {}
    for number, piece in enumerate(vocabulary, start=1):
        if lines.setdefault(piece, number) != number:
            raise PrepError(
                f"{source} holds {piece!r} twice, as entries {lines[piece]} and {number}: remove one"
            )
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise PrepError(
            f"{source} lacks the special tokens {', '.join(missing)}: "
            "give the vocabulary of a BERT, or train one"
        )
