"""The tokenizer of a model that transformers computes: byte-level BPE, SentencePiece or WordPiece."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..durable import replaced
from ..errors import PrepError
from .text_tokenizer import Span
from .tokenizer_folder import leads_out

_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", *_SENTENCEPIECE)
_CONFIG = "tokenizer_config.json"
_FILES = (*_VOCABULARIES, "merges.txt", _CONFIG, "special_tokens_map.json", "added_tokens.json")
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TEXTS_AT_ONCE = 1024
# A rare Chinese character.
_UNKNOWN = "\U0002a6d6"
_COPY = "copy the files of the model's tokenizer into the folder again"


class TransformersTokenizer:
    """The same ids as `AutoTokenizer` gives, but that "<mask>" in a text is six characters that somebody wrote (where a
    model of SentencePiece does not take it for one of its entries). What the owner of the tokenizer added as special
    stands for itself.

    See `TextTokenizer`.

    Args:
        theirs: a fast tokenizer of transformers.
        files: name -> content of its files, which go into every folder as they are.
        has_segments: whether the model tells a second segment from the first.

    Raises:
        PrepError: its sequences are not [CLS] A [SEP] B [SEP], with one [SEP] or two between A and B.
    """

    def __init__(self, theirs: Any, files: dict[str, bytes], has_segments: bool) -> None:
        self.files = files
        plain = _with_added_as_text(theirs)
        self._tokenizer = Tokenizer.from_str(plain)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.cls_id, self.sep_id, self.pair_separators, segments = _template(self._tokenizer)
        self.tells_segments = segments and has_segments
        self._tokenizer.encode_special_tokens = True
        self._is_told = "token_type_ids" in theirs.model_input_names
        self.unk_id = self.sep_id if theirs.unk_token_id is None else int(theirs.unk_token_id)
        entries = {number: entry for entry, number in self._tokenizer.get_vocab().items()}
        self.vocabulary = tuple(entries.get(number, "") for number in range(max(entries) + 1))
        normalizer = self._tokenizer.normalizer
        self.lowercase = normalizer is not None and normalizer.normalize_str("A") == "a"
        facts = [plain, self.cls_id, self.sep_id, self.pair_separators, self.tells_segments]
        self._digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @classmethod
    def load(cls, folder: str | Path, has_segments: bool) -> "TransformersTokenizer":
        """Open the tokenizer in a model folder; nothing is downloaded, and no code in it is run.

        Raises:
            PrepError: there is none that transformers can open, or one of another kind.
        """
        folder = Path(folder)
        files = {}
        for path in (folder / name for name in _FILES):
            if leads_out(path):
                raise PrepError(f"{path} is a link out of its folder: copy the file itself into the folder")
            if path.is_file():
                files[path.name] = path.read_bytes()
        if not files.keys() & {*_VOCABULARIES}:
            raise PrepError(f"{folder} holds no vocabulary ({', '.join(_VOCABULARIES)}): {_COPY}")
        if files.keys() & {*_VOCABULARIES} <= {*_SENTENCEPIECE} and not _reads_sentencepiece():
            raise PrepError(
                f"{folder} has its vocabulary as a model of SentencePiece alone, which transformers reads with two "
                "more packages: pip install sentencepiece protobuf"
            )
        from transformers import AutoTokenizer

        try:
            theirs = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
            )
            if not theirs.is_fast:
                raise ValueError("it has no fast form")
        except Exception as error:  # A damaged file can fail in any way; the cause stays in the message.
            reason = str(error).strip().split("\n")[0][:200]
            raise PrepError(
                f"transformers cannot open the tokenizer of {folder} ({type(error).__name__}: {reason}): {_COPY}"
            ) from None
        try:
            found = cls(theirs, files, has_segments)
            # A vocabulary may lack what stands for the unknown.
            found.encode([_UNKNOWN])
        except PrepError as error:
            raise PrepError(f"the tokenizer of {folder} {error}") from None
        except Exception as error:  # As above.
            reason = str(error).strip().split("\n")[0][:200]
            raise PrepError(f"the tokenizer of {folder} cannot read an unknown character ({reason}): {_COPY}") from None
        return found

    @property
    def vocab_size(self) -> int:
        """Number of entries V."""
        return len(self.vocabulary)

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Ids of each sentence, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_places(self, sentences: list[str]) -> list[tuple[list[int], list[Span]]]:
        """The same, and the (start, end) of each token in its sentence, without white space before it: equal for a
        token of white space alone."""
        encodings = self._tokenizer.encode_batch(sentences, add_special_tokens=False)
        return [
            (encoding.ids, [_trimmed(sentence, *span) for span in encoding.offsets])
            for sentence, encoding in zip(sentences, encodings, strict=True)
        ]

    def encode_words(self, texts: Sequence[tuple[str, Sequence[Span]]]) -> Iterator[tuple[list[int], list[int]]]:
        """Of each text with the places of its words the ids, and which of its tokens each word begins with, ascending.

        Words are cut where they stand, as what is around a word decides its pieces. Two words in one piece begin with
        that; a word of which nothing is left, with the token before it.
        """
        for begin in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts[begin : begin + _TEXTS_AT_ONCE]
            encoded = self.encode_with_places([text for text, _ in part])
            for (text, words), (ids, places) in zip(part, encoded, strict=True):
                if ids or not words:
                    yield ids, _first_tokens(text, words, places)
                else:
                    yield [self.unk_id], [0] * len(words)

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def digest(self) -> str:
        """sha256 (hex) of everything that decides ids."""
        return self._digest

    def save(self, folder: str | Path, model_max_length: int) -> None:
        """Write the files of the tokenizer as they were, each atomically, whatever the longest sequence is.

        Where the model tells segments apart and transformers would not tell it of them, tokenizer_config.json gets a
        line that says so.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = dict(self.files)
        if self.tells_segments and not self._is_told:
            config = json.loads(files.get(_CONFIG, b"{}"))
            config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
            files[_CONFIG] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
        for name, content in files.items():
            with replaced(folder / name) as temporary:
                temporary.write_bytes(content)


def _reads_sentencepiece() -> bool:
    return all(find_spec(name) for name in ("sentencepiece", "google")) and find_spec("google.protobuf") is not None


def _with_added_as_text(theirs: Any) -> str:
    """The tokenizer.json of a tokenizer in which only the tokens of its model are special, not those added to it."""
    plain: str = theirs.backend_tokenizer.to_str()
    content = json.loads(plain)
    roles = {str(getattr(theirs, role)) for role in _ROLES}
    further = [token for token in content["added_tokens"] if token["special"] and token["content"] not in roles]
    for token in further:
        token["special"] = False
    return json.dumps(content) if further else plain


def _template(tokenizer: Tokenizer) -> tuple[int, int, int, bool]:
    """Ids of [CLS] and [SEP], how many [SEP] stand between two texts, and whether the second one is a segment."""
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "b")
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    cls_id, sep_id = single.ids[0], single.ids[-1]
    between = len(pair.ids) - len(first) - len(second) - 2
    expected = [cls_id, *first, *[sep_id] * between, *second, sep_id]
    if single.ids != [cls_id, *first, sep_id] or pair.ids != expected or between not in (1, 2):
        raise PrepError("puts sequences together in another way than [CLS] A [SEP] B [SEP]: give another model")
    return cls_id, sep_id, between, pair.type_ids[-2] == 1


def _trimmed(text: str, start: int, end: int) -> Span:
    """The place of a token without white space before it, which byte-level pieces may hold."""
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _first_tokens(text: str, words: Sequence[Span], places: Sequence[Span]) -> list[int]:
    """Which token each word begins with: the first that starts in it, else the last that starts before it.

    A blank that is a token by itself is of the word behind it, as transformers numbers words. No word begins with other
    white space unless there is nothing else.
    """
    if not words:
        return []
    kept = [at for at, (start, end) in enumerate(places) if start < end or not start or text[start - 1] == " "]
    kept = np.array(kept or range(len(places)))
    starts = np.array([start for start, _ in places])[kept]
    begins, ends = np.array(words).T
    found = np.searchsorted(starts, begins, side="left")
    is_inside = starts[np.minimum(found, len(starts) - 1)] < ends
    is_inside &= found < len(starts)
    before = np.maximum(np.searchsorted(starts, begins, side="right") - 1, 0)
    return [int(kept[place]) for place in np.where(is_inside, found, before)]
