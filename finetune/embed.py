"""Vectors of texts, for search and grouping, from any model folder. `python -m finetune.embed`"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL, option_name
from data_prep.text.sources import Source

from .inputs import ROWS_AT_ONCE, Form, begin, check_question, longer_than, parts_of
from .output import Output, asked_of
from .rows import BadRows, Example
from .settings import FinetuneError
from .vectors.cosines import RandomCosine

# A text has a vector for each of its words or tokens, in memory at once.
ROWS_OF_PARTS = 64


@dataclass(frozen=True)
class EmbedSettings:
    """Settings of `python -m finetune.embed`."""

    file: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Texts: .txt (a text a line), .jsonl, .csv, .tsv, .json, .conll (also .gz) or .parquet. Without a file: standard
    input."""
    model: str = "runs/builtin/final"
    """Folder of the model: final/ of any run, a checkpoint, or one of transformers or sentence-transformers."""
    out: str | None = None
    """File to write, which must not be there yet: .npy (a row a text), .parquet or .jsonl (the input's columns, and
    vector). Without it: JSON lines on standard output."""
    pooling: Literal["auto", "mean", "cls", "max"] = "auto"
    """How the vector of a text is made from those of its tokens. mean: their mean; cls: that of [CLS]; max: the largest
    value in each dimension. auto: as the model folder says, else mean."""
    layer: int = -1
    """Whose output is taken: 1 the first layer, -1 the last, 0 the embeddings."""
    normalize: bool = False
    """Scale vectors to length 1, which is done too where the folder says so."""
    words: bool = False
    """A vector for each word, the mean of its pieces, instead of one for the text (.parquet or .jsonl)."""
    tokens: bool = False
    """A vector for each token but [CLS] and [SEP] (.parquet or .jsonl)."""
    long_text: Literal["auto", "head", "windows"] = "auto"
    """Of longer texts, head reads the beginning, windows all, each token once. auto: head; windows for --words and
    --tokens."""
    sequence_length: int | Literal["auto"] = "auto"
    """Longest sequence in tokens. auto: what the folder says."""
    dtype: Literal["float32", "float16"] = "float32"
    """Numbers of a .npy file."""
    save_model: str | None = None
    """Instead of vectors, write a model folder that gives the same ones in sentence-transformers."""
    input_format: Form | None = None
    """Form of standard input, txt if not given: a text a line."""
    text_column: tuple[str, ...] = ()
    """Column of the text. That of training, or found by name, if not given."""
    encoding: str = "utf-8"
    """Encoding of the input; auto: found for each file."""
    show_text: Literal["yes", "no"] = "yes"
    """no: nothing of the texts on the screen, so --out has to be given."""
    skip_bad_rows: bool = False
    """Give rows without a text no vector (null, NaN in .npy) instead of stopping."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is faster where the hardware computes in it, and less exact."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: cuda, else cpu."""

    def __post_init__(self):
        check_question(self)
        if self.save_model is not None:
            self._check_no_texts()
        if self.show_text == "no" and not (self.out or self.save_model):
            raise FinetuneError("--show-text no keeps the rows, which hold the texts, off the screen: give --out")
        if len(self.text_column) > 1:
            raise FinetuneError("--text-column names two columns, and a vector is of one text: give one column")
        if self.words and self.tokens:
            raise FinetuneError("--words and --tokens were both given: leave one out")
        form = self.form
        self._check_parts()
        if self.dtype != "float32" and form != "npy":
            raise FinetuneError(f"--dtype {self.dtype} is of a .npy file: leave it out, or give an --out of that name")

    def _check_no_texts(self) -> None:
        """What a model folder is written without."""
        if self.file or self.out:
            raise FinetuneError("--save-model writes a model folder and no vectors: leave the file and --out out")
        of_texts = ("input_format", "text_column", "encoding", "skip_bad_rows", "precision")
        for name in of_texts:
            if getattr(self, name) != getattr(type(self), name):
                option = option_name(name)
                raise FinetuneError(f"--save-model reads no texts: leave {option} out")

    def _check_parts(self) -> None:
        """What a vector for each word or token goes without."""
        if self.kind is None:
            return
        option = f"--{self.kind}"
        if self.form == "npy":
            raise FinetuneError(f"{option} gives texts different numbers of vectors: give an --out that ends in "
                                ".parquet or .jsonl")  # fmt: skip
        if self.pooling != "auto":
            raise FinetuneError(f"--pooling is of whole texts: leave it or {option} out")
        if self.long_text == "head":
            raise FinetuneError(f"{option} reads every text to its end: leave --long-text out")
        if self.save_model is not None:
            raise FinetuneError(f"a model folder gives vectors of texts: leave {option} out")

    @property
    def kind(self) -> Literal["words", "tokens"] | None:
        """Of what parts of a text there are vectors; None for the text."""
        return "words" if self.words else "tokens" if self.tokens else None

    @property
    def form(self) -> str:
        """npy, parquet or jsonl; raises FinetuneError where the name of the file says none."""
        ending = "jsonl" if self.out is None else Path(self.out).suffix.lower()[1:]
        if ending not in ("npy", "parquet", "jsonl"):
            raise FinetuneError(f"--out {self.out} is no .npy, .parquet or .jsonl file: name it so")
        return ending


def run(settings: EmbedSettings) -> None:
    """`python -m finetune.embed`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from .vectors.embedder import Embedder

    sources = begin(settings, EmbedSettings.model, "pretrain.run")
    long_text = settings.long_text if settings.long_text != "auto" else "windows" if settings.kind else "head"
    length = None if settings.sequence_length == "auto" else settings.sequence_length
    embedder = Embedder(
        settings.model, settings.device, settings.precision, settings.pooling, settings.layer, settings.normalize,
        long_text, length,
    )  # fmt: skip
    if settings.save_model is not None:
        embedder.save(settings.save_model)
        print(f'Saved {settings.save_model}: sentence_transformers.SentenceTransformer("{settings.save_model}") gives '
              f"the same vectors ({_facts(embedder)})")  # fmt: skip
        return
    write_vectors(settings, sources, embedder)


def write_vectors(settings: EmbedSettings, sources: Sequence[Source], embedder) -> None:
    """The vectors of all rows, in their order, and what is to be known of them, on standard error."""
    from .vectors.vector_files import VECTOR, VECTORS, LinesFile, NumpyFile, to_parquet

    names = [VECTOR] if settings.kind is None else [settings.kind, "start", "end", VECTORS]
    is_npy = settings.form == "npy"
    finish = partial(to_parquet, names=names) if settings.form == "parquet" else None
    bad, began = BadRows(settings.skip_bad_rows, "give such rows no vector"), time.monotonic()
    with Output(settings.out, asked_of(settings, sources), is_npy, finish) as output:
        written, before = output.written, replace(output.written)
        cosine = RandomCosine(written.num_vectors, written.vector_sum)
        writer = (
            NumpyFile(output.file, embedder.dimension, settings.dtype, written.rows)
            if is_npy
            else LinesFile(output.file, names)
        )
        for rows, found in vectors(sources, settings, embedder, bad, cosine, written.rows):
            writer.write(rows, found)
            written.rows += len(rows)
            written.seconds = before.seconds + time.monotonic() - began
            written.skipped = before.skipped + bad.count
            written.num_long = before.num_long + embedder.num_long
            if cosine.total is not None:
                written.num_vectors, written.vector_sum = cosine.count, cosine.total.tolist()
            output.flush(written)
        writer.close()
    _tell(written, settings, embedder)
    sys.stderr.write(cosine.sentence())


def vectors(
    sources: Sequence[Source], settings: EmbedSettings, embedder, bad: BadRows, cosine: RandomCosine, done: int = 0
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any] | None]]]:
    """Rows with what is added to each of them, None where one is skipped, in input order, a part after the other.

    Args:
        done: rows at the beginning that are passed over.
    """
    from .vectors.embedder import Texts

    at_once = ROWS_AT_ONCE if settings.kind is None else ROWS_OF_PARTS
    for part in parts_of(sources, settings, Texts(), embedder.text_columns, bad, at_once, done):
        usable = [example for _, example in part if example]
        own = iter(_own(usable, settings.kind, embedder, cosine))
        yield [row for row, _ in part], [next(own) if example else None for _, example in part]


def _own(
    examples: Sequence[Example], kind: Literal["words", "tokens"] | None, embedder, cosine: RandomCosine
) -> list[dict[str, Any]]:
    if kind is not None:
        return [parts.as_dict(kind) for parts in embedder.of_parts(examples, kind)]
    found = embedder.of_texts([example.text for example in examples])
    cosine.add(found)
    return [{"vector": each} for each in found]


def _facts(embedder) -> str:
    """What the vectors are."""
    scaled = ", scaled to length 1" if embedder.normalize else ""
    pooled = {"mean": "the mean of the tokens", "cls": "[CLS]", "max": "the largest of each number"}[embedder.pooling]
    read = f"{'texts' if embedder.long_text == 'head' else 'windows'} of up to {embedder.sequence_length} tokens"
    return f"{pooled} of layer {embedder.layer}{scaled}, {embedder.dimension} numbers, {read}"


def _tell(written, settings: EmbedSettings, embedder) -> None:
    skipped = ""
    if written.skipped:
        how = "np.isnan(vectors[:, 0])" if settings.form == "npy" else "null"
        skipped = f", {written.skipped:,} of them without a usable text ({how})"
    long = ""
    if written.num_long:
        long = f", {written.num_long:,} {longer_than(embedder.sequence_length, embedder.long_text)}"
    what = _facts(embedder)
    if settings.kind is not None:
        what = f"one for each of their {settings.kind}, {embedder.dimension} numbers of layer {embedder.layer}"
    rows = f"{written.rows:,} row{'s' * (written.rows != 1)}"
    print(f"{rows}{skipped}{long}, {written.seconds:.1f} s. Vectors: {what}.", file=sys.stderr)


_EXAMPLES = """\
python -m finetune.embed --model runs/notes/final sentences.jsonl --out vectors.npy
python -m finetune.embed --model runs/notes/final --normalize --save-model runs/search"""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(
        EmbedSettings,
        run,
        prog="python -m finetune.embed",
        description="Make vectors of texts, words or tokens.",
        examples=_EXAMPLES,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
