"""BERT's WordPiece tokenizer: text to ids and back, and the folder that transformers opens."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..durable import write_text
from .text_tokenizer import Span
from .tokenizer_folder import LONGEST_WORD, SPECIAL_TOKENS, read_tokenizer

_WORDS_AT_ONCE = 100_000
_UNUSED = re.compile(r"\[unused_?\d+\]")
_BRACKETED = re.compile(r"\[.+\]")  # a token with a role, never the outcome of normalising text


def bert_normalizer(lowercase: bool, strip_accents: bool, split_chinese: bool = True) -> normalizers.BertNormalizer:
    """BERT's cleaning of text before it is cut into words."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_chinese, strip_accents=strip_accents, lowercase=lowercase
    )


def build_tokenizer(
    vocabulary: Sequence[str],
    lowercase: bool,
    strip_accents: bool,
    split_chinese: bool = True,
    added: Sequence[AddedToken] = (),
    longest_word: int = LONGEST_WORD,
) -> Tokenizer:
    """BERT's tokenizer of `tokenizers` over a vocabulary that contains the five special tokens.

    Added tokens that the vocabulary lacks take the ids behind it.
    """
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=longest_word)
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
    tokenizer.add_tokens(list(added))
    return tokenizer


class WordPieceTokenizer:
    """A vocabulary with its options, and the facts about its entries that the pipeline needs.

    `starts_word` bool [V]: the piece does not begin with `##`. `is_ordinary` bool [V]: neither a special token (one of
    the five, or an added one) nor an [unused...] slot. Pickles as pieces and options: cheap to send to a worker.

    Args:
        pieces: the vocabulary of WordPiece.
        added: tokens besides the five special ones that are found in text as they stand, before it is cut into words.
            Those that are not among the pieces follow them in `vocabulary`.
        longest_word: characters of a word; a longer one is [UNK].
    """

    pair_separators = 1
    tells_segments = True

    def __init__(
        self,
        pieces: Sequence[str],
        lowercase: bool,
        strip_accents: bool,
        split_chinese: bool = True,
        added: Sequence[AddedToken] = (),
        longest_word: int = LONGEST_WORD,
    ) -> None:
        self.pieces, self.added = tuple(pieces), tuple(added)
        self.vocabulary = tuple(dict.fromkeys((*self.pieces, *(token.content for token in self.added))))
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese = split_chinese
        self.longest_word = longest_word
        # In a corpus "[MASK]" is six characters that somebody wrote, not a hole to be filled. What the owner of the
        # tokenizer added as special stands for itself.
        plain = [_as_text(token) for token in self.added]
        self._tokenizer = build_tokenizer(self.pieces, lowercase, strip_accents, split_chinese, plain, longest_word)
        self._tokenizer.encode_special_tokens = True
        ids = [self.vocabulary.index(token) for token in SPECIAL_TOKENS]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids
        self.starts_word = np.array([not piece.startswith("##") for piece in self.vocabulary])
        special = {*SPECIAL_TOKENS, *(token.content for token in self.added if token.special)}
        self.is_ordinary = np.array([p not in special and not _UNUSED.fullmatch(p) for p in self.vocabulary])

    @property
    def _options(self) -> tuple[Any, ...]:
        return self.lowercase, self.strip_accents, self.split_chinese, self.added, self.longest_word

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pieces, *self._options)

    @property
    def vocab_size(self) -> int:
        """Number of entries V."""
        return len(self.vocabulary)

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Ids of each sentence, without special tokens, on all cores; a literal "[MASK]" is plain text."""
        encodings = self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_places(self, sentences: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The same, and the (start, end) of each token in its sentence.

        What normalisation left out (accents, control characters) is of no token at the ends of words.
        """
        encodings = self._tokenizer.encode_batch(sentences, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_words(self, texts: Sequence[tuple[str, Sequence[Span]]]) -> Iterator[tuple[list[int], list[int]]]:
        """Of each text with the places of its words the ids, and which of its tokens each word begins with, ascending.

        A word of which nothing is left is [UNK].
        """
        pieces = self._pieces_of([text[start:end] for text, words in texts for start, end in words])
        for _, words in texts:
            of_words = [next(pieces) or [self.unk_id] for _ in words]
            ids = [piece for of_word in of_words for piece in of_word]
            yield ids, list(accumulate(map(len, of_words), initial=0))[:-1]

    def _pieces_of(self, words: list[str]) -> Iterator[list[int]]:
        for begin in range(0, len(words), _WORDS_AT_ONCE):
            yield from self.encode(words[begin : begin + _WORDS_AT_ONCE])

    def extended(self, entries: Sequence[str]) -> "WordPieceTokenizer":
        """The same with further entries behind its own. What was added behind the pieces becomes one of them."""
        return WordPieceTokenizer((*self.vocabulary, *entries), *self._options) if entries else self

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
        facts = [self.pieces, self.lowercase, self.strip_accents, self.split_chinese, self.longest_word]
        if self.added:
            facts.append([token.__getstate__() for token in self.added])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def save(self, folder: str | Path, model_max_length: int) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, each atomically, for transformers.

        `model_max_length` is the longest sequence of the model, in tokens. Equal tokenizers give equal bytes.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            # transformers builds a BertTokenizer without a look at the length of words.
            "tokenizer_class": "BertTokenizer" if self.longest_word == LONGEST_WORD else "PreTrainedTokenizerFast",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.split_chinese,
            "model_max_length": model_max_length,
            "model_input_names": ["input_ids", *["token_type_ids"] * self.tells_segments, "attention_mask"],
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
        }
        if self.added:
            ids = {entry: i for i, entry in enumerate(self.vocabulary)}
            config["added_tokens_decoder"] = {str(ids[token.content]): token.__getstate__() for token in self.added}
        faithful = build_tokenizer(self.pieces, *self._options)
        write_text(folder / "vocab.txt", "".join(piece + "\n" for piece in self.pieces))
        write_text(folder / "tokenizer.json", faithful.to_str(pretty=True) + "\n")
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "WordPieceTokenizer":
        """Open a tokenizer folder of ours or of transformers, or a bare vocab.txt.

        Where the files do not say whether to lower-case or to strip accents (a bare vocab.txt), the entries do: an
        option that would change one of them cannot have been on.
        Raises PrepError for a path that does not hold a complete WordPiece tokenizer.
        """
        found = read_tokenizer(Path(path))
        lower = found.options.get("do_lower_case")
        if lower is None:
            lower = _unchanged(found.pieces, lowercase=True, strip_accents=False)
        if "strip_accents" not in found.options:
            strip = lower and _unchanged(found.pieces, lowercase=False, strip_accents=True)
        else:
            strip = lower if found.options["strip_accents"] is None else found.options["strip_accents"]
        split_chinese = found.options.get("tokenize_chinese_chars", True)
        return cls(found.pieces, lower, strip, split_chinese, found.added, found.longest_word)


def _as_text(token: AddedToken) -> AddedToken:
    """The same token, found in the same places, but not special."""
    return AddedToken(**{**token.__getstate__(), "special": False})


def _unchanged(vocabulary: Sequence[str], lowercase: bool, strip_accents: bool) -> bool:
    normalizer = normalizers.BertNormalizer(False, False, strip_accents=strip_accents, lowercase=lowercase)
    return all(normalizer.normalize_str(p) == p for p in vocabulary if not _BRACKETED.fullmatch(p))
