"""The texts of a file that are nearest to what is asked for. `python -m finetune.search`"""

import heapq
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL
from data_prep.text.cells import JOINERS, is_blank, whole_characters
from data_prep.text.sources import Source

from .inputs import ROWS_AT_ONCE, begin, check_question, longer_than, parts_of
from .rows import BadRows
from .settings import FinetuneError
from .vectors.cosines import RandomCosine

# Of a text on the screen.
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class SearchSettings:
    """Settings of `python -m finetune.search`."""

    query: Annotated[tuple[str, ...], POSITIONAL] = ()
    """What to look for, each in quotation marks."""
    texts: str | None = None
    """Where to look: .txt (a text a line), .jsonl, .csv, .tsv, .json, .conll (also .gz) or .parquet."""
    model: str = "runs/builtin/final"
    """Folder of the model, preferably one fine-tuned with --task similarity."""
    nearest: int = 10
    """How many texts to show."""
    text_column: tuple[str, ...] = ()
    """Column of the text. That of training, or found by name, if not given."""
    encoding: str = "utf-8"
    """Encoding of the input; auto: found for each file."""
    show_text: Literal["yes", "no"] = "yes"
    """no: places and cosines alone."""
    skip_bad_rows: bool = False
    """Pass over rows without a text instead of stopping."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is faster where the hardware computes in it, and less exact."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: cuda, else cpu."""

    def __post_init__(self):
        if not self.query and len(self.text_column) > 1:
            raise FinetuneError("--text-column took what is to be looked for: put that before --text-column")
        if files := [word for word in self.query if self.texts and os.path.isfile(word)]:
            raise FinetuneError(
                f"{files[0]} is a file, and would be looked for: give one file with --texts, their folder, or a "
                "pattern in quotes ('2024-*.csv')"
            )
        if all(map(is_blank, self.query)):
            raise FinetuneError("nothing to look for was given: name it in quotation marks")
        if any(map(is_blank, self.query)):
            raise FinetuneError("one of the texts to look for is empty: leave it out")
        if not self.texts:
            raise FinetuneError("no file to look in was given: name one with --texts")
        if self.nearest < 1:
            raise FinetuneError(f"--nearest {self.nearest} is less than 1: give a positive number")
        if len(self.text_column) > 1:
            raise FinetuneError("--text-column names two columns, and a vector is of one text: give one column")
        check_question(self)

    @property
    def file(self) -> tuple[str, ...]:
        """The file to look in."""
        return (self.texts,) if self.texts else ()

    @property
    def out(self) -> None:
        """Nothing is written."""

    @property
    def input_format(self) -> None:
        """Nothing is read from standard input."""


class Found(NamedTuple):
    """A text; the nearest of several is the largest."""

    cosine: float
    order: int
    """How many usable rows stand before it, negative: of two that are as near the first one comes first."""
    place: str
    text: str


def run(settings: SearchSettings) -> None:
    """`python -m finetune.search`. Torch is imported only now, so that --help and bad arguments answer at once."""
    from .vectors.embedder import Embedder

    sources = begin(settings, SearchSettings.model, "pretrain.run")
    embedder = Embedder(settings.model, settings.device, settings.precision, normalize=True)
    bad = BadRows(settings.skip_bad_rows, "pass over such rows")
    queries = embedder.of_texts([whole_characters(query) for query in settings.query])  # [Q, H]
    num_long, cosine = embedder.num_long, RandomCosine()
    for query, found in zip(settings.query, nearest(settings, sources, embedder, queries, bad, cosine), strict=True):
        if len(settings.query) > 1:
            print(f"\n{_one_line(query)}" if settings.show_text == "yes" else "")
        for each in found:
            text = f"  {_one_line(each.text)}" if settings.show_text == "yes" else ""
            print(f"{each.cosine:6.3f}  {each.place}{text}")
    counts = {"to look for": num_long, "of the file": embedder.num_long - num_long}
    if long := [f"{count:,} text{'s' * (count != 1)} {which}" for which, count in counts.items() if count]:
        what = longer_than(embedder.sequence_length, embedder.long_text)
        print(f"{' and '.join(long)}: {what}", file=sys.stderr)
    sys.stderr.write(cosine.sentence())
    if bad.count:
        print(f"{bad.count:,} rows without a usable text were passed over", file=sys.stderr)


def nearest(
    settings: SearchSettings, sources: Sequence[Source], embedder, queries: np.ndarray, bad: BadRows,
    cosine: RandomCosine,
) -> list[list[Found]]:  # fmt: skip
    """Of each query the texts with the largest cosines, the nearest first. Memory does not grow with the file.

    Args:
        queries: their unit vectors [Q, H].
        cosine: takes in the vectors of all texts.

    Raises:
        FinetuneError: the file has no usable text.
    """
    best: list[list[Found]] = [[] for _ in queries]
    for places, texts, first in _texts(settings, sources, embedder, bad):
        # What is computed beside a text changes the last digits of its cosine. Rounded, those of equal texts are equal,
        # unless they lie on both sides of a border of rounding.
        vectors = embedder.of_texts(texts)
        cosine.add(vectors)
        cosines = np.round(queries @ vectors.T, 6)  # [Q, n]
        for number, of_query in enumerate(cosines.tolist()):
            order = range(-first, -first - len(texts), -1)
            rows = map(Found._make, zip(of_query, order, places, texts, strict=True))
            best[number] = heapq.nlargest(settings.nearest, [*best[number], *rows])
    if not best[0]:
        raise FinetuneError(f"{settings.texts} has no usable row: give a file of texts")
    return best


def _texts(
    settings: SearchSettings, sources: Sequence[Source], embedder, bad: BadRows
) -> Iterator[tuple[list[str], list[str], int]]:
    """Places and texts of a part of the usable rows after the other, and how many came before."""
    from .vectors.embedder import Texts

    done = 0
    for part in parts_of(sources, settings, Texts(), embedder.text_columns, bad, ROWS_AT_ONCE):
        usable = [example for _, example in part if example]
        if usable:
            yield [example.place for example in usable], [example.text for example in usable], done
        done += len(usable)


def _one_line(text: str) -> str:
    line = " ".join("".join(each if each.isprintable() or each in JOINERS else " " for each in text).split())
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…"


_EXAMPLES = """\
python -m finetune.search --model runs/vectors/final --texts sentences.jsonl "chest pain at night\""""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(
        SearchSettings,
        run,
        prog="python -m finetune.search",
        description="Find the texts that are nearest to a text.",
        examples=_EXAMPLES,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
