"""A BERT of any folder, asked for vectors: of texts, of their words, of their tokens."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from data_prep.durable import read_object
from data_prep.text.cells import TEXT_COLUMNS, is_blank, kind_of, parsed_cell, whole_characters, words_apart
from model import BertModel
from pretrain.engine.checkpoint import save_model_folder
from pretrain.engine.device import Precision, evaluating, find_device
from pretrain.engine.folder import family_of, model_mistakes, open_model, require_embeddings, whole_folder
from pretrain.engine.out_of_memory import fitting

from ..batches import BatchMaker, Encoded, LabelledBatch
from ..parallel import in_parallel, tokens_at_once
from ..rows import Columns, Example, Labels, refuse_table, text_of
from ..settings import FACTS_FILE, FinetuneError
from ..tasks.tagging import Tagging
from ..tokenizer import open_tokenizer
from ..words import Span, encode_tokens, words_of, words_with_tokens
from .sentence_model import Pooling, SentenceModel

# Vocabulary, tokenizer and settings, generously.
_TEXTS_AT_ONCE = 4096
_SMALL_FILES = 4_000_000
# Columns that hold lists of words.
_OF_WORDS = ("tokens", "words")


class Texts(Labels):
    """What is known of rows whose texts get vectors."""

    label_columns: tuple[str, ...] = ()
    takes_pairs = False

    def usual_text_columns(self, sample: Sequence[Mapping[str, Any]], label: str | None) -> Sequence[str]:
        """The usual ones, then those of lists of words."""
        return (*TEXT_COLUMNS, *_OF_WORDS)

    def example(self, place: str, row: Mapping[str, Any], columns: Columns) -> Example:
        """A text, or a list of words, which are those of the example then."""
        column = columns.texts[0]
        value = parsed_cell(row.get(column)) if column.lower() in _OF_WORDS else row.get(column)
        if isinstance(value, list):
            return Tagging().example(place, row, columns)
        return Example(place, text_of(dict(row), column))


@dataclass(frozen=True)
class Parts:
    """The W words or tokens of a text."""

    names: list[str]
    spans: list[Span]
    """(start, end) in the text."""
    vectors: np.ndarray
    """Float32 [W, H]."""

    def as_dict(self, kind: str) -> dict[str, Any]:
        """By the names of columns: those of the names is `kind`."""
        starts, ends = ([span[side] for span in self.spans] for side in (0, 1))
        return {kind: self.names, "start": starts, "end": ends, "vectors": self.vectors}


class Embedder:
    """A BERT that gives vectors of texts: a pretrained one, or one that was fine-tuned for any task.

    Args:
        folder: a model folder of ours, of transformers, or of sentence-transformers.
        device, precision: see `Predictor`.
        pooling: "mean" of a text's tokens with [CLS] and [SEP], its [CLS] ("cls"), or the largest value in each place
            ("max"); "auto" is what the folder says, mean where it says nothing.
        layer: whose output is taken: 1 is the first layer, 0 the embeddings before it, -1 the last one.
        normalize: scale vectors to length 1, which is done too where the folder says so.
        long_text: of texts longer than `sequence_length` "head" reads the beginning, "windows" all: overlapping
            windows, in which every token counts once (of [CLS], the mean of the windows' is taken).
        sequence_length: longest sequence in tokens; by default what the folder says.
        micro_batch_tokens: most tokens computed at once, by default by device.

    Raises:
        UserError: the folder holds no BERT with its tokenizer, or makes its vectors in another way.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        pooling: Pooling | Literal["auto"] = "auto",
        layer: int = -1,
        normalize: bool = False,
        long_text: Literal["head", "windows"] = "head",
        sequence_length: int | None = None,
        micro_batch_tokens: int | None = None,
    ):
        for name, value, known in (("pooling", pooling, ("auto", *get_args(Pooling))),
                                   ("long_text", long_text, ("head", "windows"))):  # fmt: skip
            if value not in known:
                raise FinetuneError(f"{name} {value!r} is not known: give one of {', '.join(known)}")
        layer = _whole_number("layer", layer)
        if sequence_length is not None:
            sequence_length = _whole_number("sequence_length", sequence_length)
        self._precision = Precision(find_device(device), precision)
        said = SentenceModel.read(Path(folder))
        place = Path(folder) / said.folder
        model = _encoder(place)
        self.tokenizer = open_tokenizer(place)
        if said.lowercase and not self.tokenizer.lowercase:
            raise FinetuneError(f"{folder} puts texts in lower case before its tokenizer: open it with "
                                "sentence-transformers")  # fmt: skip
        config = model.config
        require_embeddings(place, self.tokenizer.vocab_size, config.vocab_size, FinetuneError)
        self.layer = _layer(layer, config.num_hidden_layers, folder)
        self.model = model.first_layers(self.layer).to(self._precision.device)
        longest = config.max_position_embeddings
        if sequence_length is not None and not 3 <= sequence_length <= longest:
            raise FinetuneError(f"--sequence-length {sequence_length} is not between 3 and {longest}, the most tokens "
                                f"that {folder} reads")  # fmt: skip
        self.pooling: Pooling = said.pooling if pooling == "auto" else pooling
        self.normalize = normalize or said.normalize
        self.long_text = long_text
        self.sequence_length = sequence_length or min(longest, said.sequence_length or longest)
        self.num_long = 0
        """Texts so far that were longer than the model reads at once."""
        self.text_columns = _trained_on(place)
        """The column of the texts that it was fine-tuned on, where that is known."""
        self._tokens_at_once = micro_batch_tokens or tokens_at_once(self._precision.device)

    @property
    def dimension(self) -> int:
        """H, numbers of a vector."""
        return self.model.config.hidden_size

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        """The vectors of texts: float32 [n, H], in their order.

        Raises:
            UserError: one of them is empty, or no text.
        """
        return self.of_texts([_checked(number, text) for number, text in enumerate(_several(texts), 1)])

    def embed_words(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        """The words of each text with the mean of the vectors of their pieces: {"words": ["one", "text"], "start":
        [0, 4], "end": [3, 8], "vectors": float32 [W, H]}. Two words in one piece both have its vector. Long texts are
        read in windows.

        Raises:
            UserError: one of them is empty, or no text.
        """
        return self._of_parts(texts, "words")

    def embed_tokens(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        """The same of the tokens of each text, without [CLS] and [SEP], as "tokens"."""
        return self._of_parts(texts, "tokens")

    def _of_parts(self, texts: Iterable[str], kind: Literal["words", "tokens"]) -> list[dict[str, Any]]:
        examples = [Example("", _checked(number, text)) for number, text in enumerate(_several(texts), 1)]
        return [parts.as_dict(kind) for parts in self.of_parts(examples, kind)]

    def of_texts(self, texts: Sequence[str]) -> np.ndarray:
        """The same as `embed`, of texts that were looked at. Of a model in float64 they are float64."""
        parts = (texts[begin : begin + _TEXTS_AT_ONCE] for begin in range(0, len(texts), _TEXTS_AT_ONCE))
        ids = [ids for part in parts for ids in self.tokenizer.encode([words_apart(text) for text in part])]
        read: Literal["first", "all"] = "first" if self.pooling == "cls" else "all"
        encoded = encode_tokens(ids, self.sequence_length, self.long_text, read)
        self.num_long += encoded.num_long
        return self._scaled(self._pooled(encoded, self.pooling))

    def of_parts(self, examples: Sequence[Example], kind: Literal["words", "tokens"]) -> Iterator[Parts]:
        """The words of texts, those of the example where it has any, or their tokens.

        The vector of a word is the mean of those of its pieces. Two words in one piece both have it; a word of which
        the tokenizer leaves nothing is left out.
        """
        found = self.tokenizer.encode_with_places([words_apart(example.text, in_place=True) for example in examples])
        encoded = encode_tokens([ids for ids, _ in found], self.sequence_length, "windows", "tokens")
        self.num_long += encoded.num_long
        vectors = self._pooled(encoded, "mean")  # [T, H]
        bounds = np.append(0, np.cumsum([len(ids) for ids, _ in found])).astype(np.int64)
        for example, (ids, places), (first, last) in zip(examples, found, pairwise(bounds), strict=True):
            of_tokens = vectors[first:last]
            if kind == "tokens":
                yield Parts([self.tokenizer.vocabulary[i] for i in ids], places, self._scaled(of_tokens))
                continue
            spans, own = words_with_tokens(words_of(example.text) if example.words is None else example.words, places)
            of_words = np.zeros((len(spans), self.dimension), dtype=vectors.dtype)  # [W, H]
            for row, pieces in zip(of_words, own, strict=True):
                row[:] = of_tokens[pieces].mean(0)
            yield Parts([example.text[start:end] for start, end in spans], spans, self._scaled(of_words))

    def save(self, folder: str | Path) -> None:
        """Write a folder that `sentence_transformers.SentenceTransformer` opens and that gives the same vectors there:
        the model up to the layer, the pooling and the length.

        Raises:
            UserError: it is there already, the disk is full, or the vectors are none that such a folder can give.
        """
        if self.layer == 0:
            raise FinetuneError("no model folder has no layers: save one with --layer 1 or more")
        if self.long_text == "windows":
            raise FinetuneError("sentence-transformers reads the beginning of a long text: leave --long-text out")
        if Path(folder).exists():
            raise FinetuneError(f"{folder} is there already: give another name, or remove it")
        said = SentenceModel(self.pooling, self.normalize, self.sequence_length)
        with whole_folder(Path(folder), self.model.num_bytes + _SMALL_FILES) as temporary:
            with model_mistakes(FinetuneError):
                save_model_folder(self.model, self.tokenizer, temporary, model_max_length=self.sequence_length)
            said.write(temporary, self.dimension)

    def _scaled(self, vectors: np.ndarray) -> np.ndarray:
        if not self.normalize:
            return vectors
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)

    def _pooled(self, encoded: Encoded, pooling: Pooling) -> np.ndarray:
        """The vectors of the items: [I, H]."""
        is_max, count = pooling == "max", len(encoded.targets)
        parameter = next(self.model.parameters())
        dtype, device = parameter.dtype, parameter.device
        maker = BatchMaker(encoded, self.tokenizer, self._tokens_at_once)

        def of_items(part: tuple[np.ndarray, LabelledBatch]) -> tuple[np.ndarray, np.ndarray]:
            rows, inverse = np.unique(part[0], return_inverse=True)
            hidden = self._hidden(part[1], only_first=pooling == "cls").to(dtype)  # [P, H]
            owner = torch.from_numpy(inverse).to(hidden.device)[:, None].expand_as(hidden)
            each = hidden.new_full((len(rows), self.dimension), float("-inf") if is_max else 0.0)
            each.scatter_reduce_(0, owner, hidden, "amax" if is_max else "sum")
            return rows, each.cpu().numpy()

        def added() -> np.ndarray:
            found = torch.full((count, self.dimension), float("-inf") if is_max else 0.0, dtype=dtype).numpy()
            batches = maker.items_and_batches(np.arange(encoded.num_texts))
            for rows, each in in_parallel(of_items, batches, device):
                found[rows] = np.maximum(found[rows], each) if is_max else found[rows] + each
            return found

        with evaluating(self.model):
            found = fitting(added, maker, encoded.sequences.lengths(), device)
        self._tokens_at_once = maker.micro_batch_tokens
        if not is_max:
            found /= np.bincount(encoded.item, minlength=count)[:, None].astype(found.dtype)
        if not np.isfinite(found).all():
            raise FinetuneError("the vectors hold numbers that are not finite: the weights of the model are damaged")
        return found

    def _hidden(self, batch: LabelledBatch, only_first: bool) -> Tensor:
        """The output of the layer at the places of a batch: [P, H]."""
        batch = batch.to(next(self.model.parameters()).device)
        with self._precision():
            if self.layer == 0:
                hidden = self.model.embedded(batch)  # [T, H]
            elif only_first:
                return self.model.encode(batch, at=batch.places, most_at=1).last_hidden_state
            else:
                hidden = self.model.encode(batch).last_hidden_state  # [T, H]
        # Places are in order, each once.
        return hidden if len(batch.places) == batch.num_tokens else hidden.index_select(0, batch.places)


def _encoder(folder: Path) -> BertModel:
    """The BERT of a folder without its heads; the pooler stays where the folder has one."""
    kind = family_of(folder, FinetuneError).encoder
    # A pooler that the folder lacks is drawn, and thrown away. Labels are of a head.
    with torch.random.fork_rng(devices=[]):
        model = open_model(kind, folder, FinetuneError, id2label=None, num_labels=2, problem_type=None)
    if model.newly_initialised:
        model.pooler = None
    return model


def _whole_number(name: str, value: Any) -> int:
    """Of numpy and torch too, as Python's own; raises FinetuneError where it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise FinetuneError(f"{name} {value!r} is not a whole number: give one") from None


def _layer(asked: int, num_layers: int, folder: str | Path) -> int:
    """The number of a layer from 0 on; raises FinetuneError where there is none of this number."""
    if not -num_layers - 1 <= asked <= num_layers:
        raise FinetuneError(f"--layer {asked} is not there: the layers of {folder} are 1 to {num_layers}, 0 stands for "
                            "the embeddings before them, -1 for the last")  # fmt: skip
    return asked if asked >= 0 else num_layers + 1 + asked


def _trained_on(folder: Path) -> tuple[str, ...]:
    names = (read_object(folder / FACTS_FILE, text_columns=list) or {}).get("text_columns", [])
    return (str(names[0]),) if len(names) == 1 else ()


def _several(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise FinetuneError("a single text was given where texts should be: put it into a list")
    if isinstance(texts, Mapping):
        raise FinetuneError("a row was given where texts should be: give its text in a list")
    refuse_table(texts)
    return texts


def _checked(number: int, text: Any) -> str:
    if isinstance(text, tuple | list):
        raise FinetuneError(f"text {number} is {kind_of(text)}: give one text, for a vector is of a single one")
    if not isinstance(text, str):
        raise FinetuneError(f"text {number} is {kind_of(text)}: give a text")
    if is_blank(text):
        raise FinetuneError(f"text {number} is empty: leave it out")
    return whole_characters(text)
