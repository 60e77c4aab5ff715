"""What a person may decide about the preparation of a corpus."""

from dataclasses import dataclass, field
from typing import Literal

from .errors import PrepError


@dataclass(frozen=True)
class PrepSettings:
    """From text to ids: these settings decide vocabulary, documents and sentences."""

    corpus: tuple[str, ...] = ("builtin",)
    """Text to learn from: files (.txt .jsonl .csv .tsv .parquet, also .gz), folders, globs, hub:owner/name, builtin."""
    validation_corpus: tuple[str, ...] = ()
    """Text to evaluate on. Without it some of the documents are held out."""
    document: Literal["auto", "file", "blank-line", "line"] = "auto"
    """What a document is in .txt files."""
    line: Literal["auto", "sentence", "paragraph"] = "auto"
    """What a line is: one sentence, or a paragraph to be split into sentences."""
    language: str = "en"
    """Language code for sentence splitting."""
    encoding: str = "utf-8"
    """Encoding of the text files."""
    text_column: str | None = None
    """Column that holds the text in .jsonl, .csv, .tsv and .parquet. Found by name if not given."""
    group_column: str | None = None
    """Column whose equal values must stay on one side of the held-out split (a patient, a case)."""
    tokenizer: str | None = None
    """Use this tokenizer (a folder, or a vocab.txt) and train none."""
    vocab_size: int | Literal["auto"] = "auto"
    """Size of the vocabulary, a multiple of 64. auto: 8,192 under 20 MB of text, 16,384 under 200 MB, else 30,528."""
    lowercase: bool = True
    """Lower-case the text."""
    strip_accents: bool = False
    """Remove accents (this also takes Korean syllables apart)."""
    workers: int | Literal["auto"] = "auto"
    """Processes that encode. auto: one a core. The result does not depend on it."""

    def __post_init__(self):
        if isinstance(self.vocab_size, int) and (self.vocab_size < 128 or self.vocab_size % 64):
            near = max(128, round(self.vocab_size / 64) * 64)
            raise PrepError(f"--vocab-size {self.vocab_size} is not a multiple of 64 from 128 on: use {near}")
        if self.tokenizer is not None:
            default = PrepSettings()
            for name in ("vocab_size", "lowercase", "strip_accents"):
                if getattr(self, name) != getattr(default, name):
                    option = name.replace("_", "-")
                    raise PrepError(f"--{option} stands beside --tokenizer, which brings its own: leave one out")
        if self.group_column is not None and self.validation_corpus:
            raise PrepError("--group-column stands beside --validation-corpus, so nothing is split: leave one out")
        if isinstance(self.workers, int) and self.workers < 1:
            raise PrepError(f"--workers {self.workers} is less than 1: give the number of processes, or auto")


@dataclass(frozen=True)
class ExampleSettings:
    """From ids to examples: these settings decide pairs and masks."""

    sequence_length: int = 128
    """Most tokens of an example, special tokens included."""
    masking: Literal["token", "whole-word"] = "token"
    """What is masked together: single word pieces, or all pieces of a word."""
    seed: int = 1
    """Seed of every random decision."""

    def __post_init__(self):
        if self.sequence_length < 8:
            raise PrepError(f"--sequence-length {self.sequence_length} is too short for a pair: use 8 or more")
        if not 0 <= self.seed < 1 << 63:
            raise PrepError(f"--seed {self.seed} is not between 0 and 2^63: use a small positive number")


@dataclass(frozen=True)
class PrepCommand:
    """Settings of `python -m data_prep.run`."""

    out: str = "prepared"
    """Folder to write."""
    static_masks: int = 0
    """Also write so many masked copies of the corpus, for the BertForPreTraining of transformers."""
    prep: PrepSettings = field(default_factory=PrepSettings)
    examples: ExampleSettings = field(default_factory=ExampleSettings)

    def __post_init__(self):
        if self.static_masks < 0:
            raise PrepError(f"--static-masks {self.static_masks} is negative: give the number of copies, or 0 for none")
