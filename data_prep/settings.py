"""What a person may decide about the preparation of a corpus."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Literal, Self

from .console.options import option_name
from .errors import PrepError

LONGEST_SEQUENCE = 8192
# Far more than any BERT has. Training the vocabulary takes memory for each entry that is asked for.
_LARGEST_VOCABULARY = 1 << 20


def option_of(name: str) -> str:
    """The option that gives a setting of the preparation another value than its default."""
    return "--no-lowercase" if name == "lowercase" else option_name(name)


@dataclass(frozen=True)
class PrepSettings:
    """From text to ids: these settings decide vocabulary, documents and sentences."""

    groups: ClassVar = {
        "text": ("corpus", "exclude", "validation_corpus", "document", "line", "language", "encoding", "text_column",
                 "skip_bad_rows", "group_column", "group_by", "near_duplicates", "show_text", "workers"),
        "vocabulary": ("vocab_size", "min_documents", "lowercase", "strip_accents", "tokenizer", "extend_vocab"),
    }  # fmt: skip

    corpus: tuple[str, ...] = ("builtin",)
    """Text to learn from: files (.txt .jsonl .csv .tsv .parquet, .gz), folders, globs, hub:owner/name, builtin."""
    exclude: tuple[str, ...] = ()
    """Files to leave out, by name or pattern: copy.txt drafts/ '*.csv'."""
    validation_corpus: tuple[str, ...] = ()
    """Text to evaluate on. Without it some of the documents are held out."""
    document: Literal["auto", "file", "blank-line", "line"] = "auto"
    """What one document is in .txt files: a file, a block between blank lines, or a line. auto: chosen by a look at the
    text."""
    line: Literal["auto", "sentence", "paragraph", "wrapped"] = "auto"
    """What one line holds. sentence: a sentence; paragraph: several; wrapped: part of a paragraph (lines are joined up
    to a blank line, then split). auto: chosen by a look at the text."""
    language: str = "en"
    """Language code for sentence splitting."""
    encoding: str = "utf-8"
    """Encoding of the text files; auto: found for each."""
    text_column: str | None = None
    """Column of the text in .jsonl, .csv, .tsv and .parquet. Found by name if not given."""
    group_column: str | None = None
    """Column that says whose text a row is (a patient, a case). Rows with the same value stay together: all of them in
    training, or all held out."""
    group_by: Literal["auto", "file", "document"] = "auto"
    """Without --group-column, what is held out as a whole: a file, or a document. auto: a file, if enough whole files
    can be held out."""
    near_duplicates: Literal["group", "drop", "keep"] = "group"
    """Documents that share two thirds of their text. group: keep them on one side of the held-out split; drop: keep
    only the first; keep: do not look for them."""
    skip_bad_rows: bool = False
    """Leave out rows that cannot be read or hold no text, however many they are; the report lists the first 20."""
    tokenizer: str | None = None
    """Use this tokenizer (a folder, or a vocab.txt) and train none."""
    extend_vocab: int = 0
    """Entries to add to --tokenizer (or --init-from): those that shorten the text most."""
    vocab_size: int | Literal["auto"] = "auto"
    """A multiple of 64. auto: 8,192 under 20 MB of text, 16,384 under 200 MB, else 30,528."""
    min_documents: int = 1
    """Minimum documents (or groups) that have an entry; rarer names are split into pieces."""
    lowercase: bool = True
    """Lower-case the text."""
    strip_accents: bool = False
    """Remove accents (also the vowel signs of Hindi, Thai and others; and it takes Korean syllables apart)."""
    show_text: Literal["yes", "no"] = "yes"
    """no: nothing of the text on the screen, in the log or in the report."""
    workers: int | Literal["auto"] = "auto"
    """Processes that encode. auto: one a core of this machine. The result does not depend on it."""

    def __post_init__(self):
        if not self.corpus:
            raise PrepError("no text is named: give files, folders, hub:owner/name or builtin as --corpus")
        if isinstance(self.vocab_size, int):
            near = min(max(128, round(self.vocab_size / 64) * 64), _LARGEST_VOCABULARY)
            if self.vocab_size != near:
                raise PrepError(f"--vocab-size {self.vocab_size} is not a multiple of 64 from 128 to "
                                f"{_LARGEST_VOCABULARY:,}: use {near}")  # fmt: skip
        if self.tokenizer is not None:
            default = PrepSettings()
            names = ("vocab_size", "lowercase", "strip_accents", *(() if self.extend_vocab else ("min_documents",)))
            for name in names:
                if getattr(self, name) != getattr(default, name):
                    raise PrepError(
                        f"{option_of(name)} cannot be combined with --tokenizer, which brings its own: drop one"
                    )
        if self.validation_corpus and self.group_by != "auto":
            raise PrepError(
                "--group-by has no effect with --validation-corpus, which leaves nothing to split: drop one"
            )
        if self.validation_corpus and self.group_column is not None and self.min_documents == 1:
            raise PrepError(
                "with --validation-corpus nothing is held out, so --group-column acts on --min-documents alone: give "
                "that, too, or leave --group-column out"
            )
        if self.group_column is not None and self.group_by != "auto":
            raise PrepError("--group-by has no effect with --group-column, which says what stays together: drop one")
        if not 0 <= self.extend_vocab <= 100_000:
            raise PrepError(f"--extend-vocab {self.extend_vocab} is out of range: give a number of entries, as 2000")
        if self.min_documents < 1:
            raise PrepError(f"--min-documents {self.min_documents} is less than 1: give a number of documents")
        if isinstance(self.workers, int) and self.workers < 1:
            raise PrepError(f"--workers {self.workers} is less than 1: give the number of processes, or auto")


@dataclass(frozen=True)
class ExampleSettings:
    """From ids to examples: these settings decide pairs and masks."""

    groups: ClassVar = {"pairs and masks": ("sequence_length", "masking", "seed")}

    sequence_length: int | tuple[int, ...] = 128
    """Maximum tokens per example, with special tokens; in training also several: 128,512."""
    masking: Literal["token", "whole-word", "span", "ngram"] = "token"
    """Unit of masking. token: single tokens; whole-word: all tokens of a word; span: 1 to 10 words; ngram: 1 to 3
    words. Held-out text: always token."""
    seed: int = 1
    """Seed of every random decision."""

    def __post_init__(self):
        for length in self.lengths:
            if length < 8:
                raise PrepError(f"--sequence-length {length} is too short for a pair: use 8 or more")
            if length > LONGEST_SEQUENCE:
                raise PrepError(
                    f"--sequence-length {length} is more than {LONGEST_SEQUENCE}: BERT reads up to 512, in time that "
                    "grows with the square of the length"
                )
        if any(first >= second for first, second in pairwise(self.lengths)):
            given = ",".join(map(str, self.lengths))
            raise PrepError(f"--sequence-length {given} does not rise: give the shorter lengths first, as 128,512")
        if not 0 <= self.seed < 1 << 63:
            raise PrepError(f"--seed {self.seed} is not between 0 and 2^63: use a small positive number")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sequence lengths, in the order of training."""
        return (self.sequence_length,) if isinstance(self.sequence_length, int) else self.sequence_length

    @property
    def longest(self) -> int:
        """The sequence length that training ends with."""
        return self.lengths[-1]

    def of_length(self, length: int) -> Self:
        """The same with examples of one length."""
        return replace(self, sequence_length=length)


@dataclass(frozen=True)
class PrepCommand:
    """Settings of `python -m data_prep.run`."""

    out: str = "prepared"
    """Folder to write."""
    static_masks: int = 0
    """Also write this many masked copies of the corpus, for BertForPreTraining of transformers."""
    dry_run: bool = False
    """Read a sample, print the rules found, three examples and the plan, and stop."""
    prep: PrepSettings = field(default_factory=PrepSettings)
    examples: ExampleSettings = field(default_factory=ExampleSettings)

    def __post_init__(self):
        if self.prep.extend_vocab and self.prep.tokenizer is None:
            raise PrepError("--extend-vocab has nothing to extend: give the --tokenizer of an existing BERT")
        if self.static_masks < 0:
            raise PrepError(f"--static-masks {self.static_masks} is negative: give the number of copies, or 0 for none")
        if len(self.examples.lengths) > 1:
            raise PrepError(
                "--sequence-length takes one length here, and training can use the prepared corpus at all of these: "
                f"give {self.examples.longest}"
            )
