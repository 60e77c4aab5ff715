"""What fine-tuning asks of a tokenizer, whoever made it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

Span = tuple[int, int]
"""(start, end) of characters."""


class TextTokenizer(Protocol):
    """Texts to ids and back, and how sequences of the model are put together: [CLS] A [SEP] B [SEP]."""

    cls_id: int
    sep_id: int
    unk_id: int
    pair_separators: int
    """How many [SEP] stand between A and B."""
    tells_segments: bool
    """Whether the model is told which tokens are of B."""
    lowercase: bool
    vocabulary: Sequence[str]
    """Entry -> how it is written."""

    @property
    def vocab_size(self) -> int:
        """Number of entries V."""

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Ids of each sentence, without special tokens."""

    def encode_with_places(self, sentences: list[str]) -> list[tuple[list[int], list[Span]]]:
        """The same, and the (start, end) of each token in its sentence."""

    def encode_words(self, texts: Sequence[tuple[str, Sequence[Span]]]) -> Iterator[tuple[list[int], list[int]]]:
        """Of each text with the places of its words the ids, and which of its tokens each word begins with, ascending.

        A text with words has at least one token.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids, special tokens included."""

    def digest(self) -> str:
        """Of everything that decides ids."""

    def save(self, folder: str | Path, model_max_length: int) -> None:
        """Write the files with which transformers opens the same tokenizer."""
