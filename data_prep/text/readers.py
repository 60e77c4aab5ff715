"""Rows out of files: .jsonl .csv .tsv .json .conll, also .gz, .parquet, and Hub data sets."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ..errors import PrepError, ReadingFailed
from .cells import is_text
from .lines import Meter, check_unchanged, text_blocks, text_lines
from .sources import Source, listing, place_and_parts

Rows = Iterator[tuple[int, dict[str, Any]]]
Unusable = Callable[[str, int, str, str], None]
"""Gets the name of a file, the place of a row that cannot be read, what is wrong with it, and what to do."""


def refuse(name: str, place: int, problem: str, remedy: str) -> None:
    """Raises PrepError."""
    raise PrepError(f"{name}:{place} {problem}; {remedy}")


def rows(
    source: Source,
    encoding: str,
    meter: Meter,
    columns: list[str] | None = None,
    unusable: Unusable = refuse,
    named: Sequence[str] = (),
) -> Rows:
    """(place, row) for every row; the place is a line in a text file, else the row's number from 1.

    Args:
        columns: all that will be asked for (None: all); formats stored by column read no others.
        unusable: called for a row that cannot be read; where it returns, the row is left out.
        named: columns that a person named (see `_delimited_rows`).

    Raises:
        PrepError: the file cannot be read, or two of its columns have the same name.
    """
    if source.format == "jsonl":
        return _json_rows(source, encoding, meter, unusable)
    if source.is_copy:
        return _json_rows(source, "utf-8", meter, unusable)
    if source.format == "parquet":
        return _parquet_rows(source, meter, columns)
    if source.format == "hub":
        return _hub_rows(source)
    if source.format == "json":
        return _array_rows(source, encoding, meter, unusable)
    if source.format == "conll":
        return _sentence_rows(source, encoding, meter)
    return _delimited_rows(source, encoding, meter, unusable, {*named, *(columns or ())})


class _Twice(ValueError):
    """An object has a name twice; the text is where (see `_repeated`)."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs) and (twice := _repeated([name for name, _ in pairs])):
        raise _Twice(twice)
    return found


def _repeated(names: Sequence[str]) -> str:
    """Which two columns have the first name that comes a second time, "" for none; a column without a name is not asked
    for. Not the name, which is text where a first row stands in the place of the names."""
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if name and name in seen:
            return f"columns {seen[name]} and {number}"
        seen[name] = number
    return ""


def _of_one_name(place: str, columns: str) -> PrepError:
    return PrepError(f"{place} has two columns of the same name ({columns}): rename one")


def _json_rows(source: Source, encoding: str, meter: Meter, unusable: Unusable) -> Rows:
    decode = json.JSONDecoder(object_pairs_hook=_object).decode
    for number, line in enumerate(text_lines(source, encoding, meter), 1):
        if not line or line.isspace():
            continue
        try:
            row = decode(line)
        except _Twice as error:
            unusable(source.shown, number, f"has two columns of the same name ({error})", "rename one")
            continue
        except (ValueError, RecursionError) as error:
            unusable(source.shown, number, f"is not valid JSON ({error})", "every line has to be one object")
            continue
        if not isinstance(row, dict):
            unusable(source.shown, number, "is not a JSON object", 'every line has to look like {"text": "..."}')
            continue
        yield number, row


def _array_rows(source: Source, encoding: str, meter: Meter, unusable: Unusable) -> Rows:
    """The objects of one JSON array, or of that under "data" (SQuAD)."""
    try:
        found = json.loads("".join(text_blocks(source, encoding, meter)), object_pairs_hook=_object)
    except _Twice as error:
        raise _of_one_name(source.shown, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise PrepError(f"{source.shown} is not valid JSON ({error}); for an object a line call it .jsonl") from None
    if isinstance(found, dict) and isinstance(found.get("data"), list):
        found = found["data"]
    if not isinstance(found, list):
        raise PrepError(f"{source.shown} is no array of rows; give [{{...}}, {{...}}], or .jsonl with an object a line")
    for number, row in enumerate(found, 1):
        if isinstance(row, dict):
            yield number, row
        else:
            unusable(source.shown, number, "is not a JSON object", 'every row has to look like {"text": "..."}')


# Of CoNLL-U, and "# id" of MultiCoNER.
_NOTE = re.compile(r"# (\S+ = |id |newdoc\b|newpar\b)")
# Of a sentence of CoNLL-U: a word, a range of words, or an empty node before them.
_FIRST_NUMBER = re.compile(r"1(-\d+)?|0\.1")


def _sentence_rows(source: Source, encoding: str, meter: Meter) -> Rows:
    """CoNLL: a word a line, its tag in the last column, a blank line between sentences. Rows of "tokens" and "tags".

    Columns stand between tabs or else blanks; lines such as "# name = value" are notes. A line that lacks its tag, or
    has another number of columns than the first of its sentence that has any, has None; a file of words alone has no
    tags. With -DOCSTART- lines the rows have a "document" too.

    Raises:
        PrepError: it is CoNLL-U, whose ten columns begin with the number of the word and end with anything.
    """
    documents, begin, width = 0, 0, 0
    tokens: list[str] = []
    tags: list[str | None] = []

    def row() -> tuple[int, dict[str, Any]]:
        found: dict[str, Any] = {"tokens": tokens}
        found |= {"tags": tags} if any(tag is not None for tag in tags) else {}
        return begin, found | ({"document": f"{source.name}:{documents}"} if documents else {})

    for number, line in enumerate(chain(text_lines(source, encoding, meter), [""]), 1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            if tokens:
                yield row()
                tokens, tags = [], []
            documents += line.startswith("-DOCSTART-")
            continue
        if _NOTE.match(line):
            continue
        begin = begin if tokens else number
        word, *columns = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        width = width if tokens and width else len(columns)
        if not tokens and width == 9 and _FIRST_NUMBER.fullmatch(word):
            raise PrepError(
                f"{source.shown}:{number} is a line of CoNLL-U: write word and tag alone, such as by "
                "grep -vE '^(#|[0-9]+[-.])' in.conllu | cut -f 2,4 > out.conll"
            )
        tokens.append(word.strip())
        tags.append(columns[-1].strip() or None if columns and len(columns) == width else None)


def _delimited_rows(source: Source, encoding: str, meter: Meter, unusable: Unusable, names: set[str]) -> Rows:
    """.csv with quotes and any usual delimiter; .tsv as registered (IANA), where a quote is a letter.

    Blank lines above the names of columns, and Excel's "sep=;", are passed over.

    Args:
        names: of columns. A line that holds one of them is a line of names, however long the others.
    """
    lines = text_lines(source, encoding, meter)
    before, delimiter = 0, ""
    for first in lines:
        stated = _STATED_DELIMITER.fullmatch(first)
        if first.strip() and not stated:
            break
        before += 1
        delimiter = stated[1] if stated else delimiter
    else:
        return
    if source.format == "tsv":
        dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    else:
        delimiter = delimiter or max(_DELIMITERS, key=_QUOTED.sub("", first).count)
        dialect = {"delimiter": delimiter, "strict": True, "skipinitialspace": True}
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line + "\n" for line in chain([first], lines)), **dialect)
    records = _records(reader, source, before, unusable)
    place, header = next(records)
    header = _names_of_columns(f"{source.shown}:{place}", header, names)
    for place, fields in records:
        if len(fields) == len(header):
            yield place, dict(zip(header, fields, strict=True))
        else:
            problem = f"has {len(fields)} fields where the first line has {len(header)}"
            unusable(source.shown, place, problem, _FIELD_REMEDY[source.format])


def _records(reader: Any, source: Source, before: int, unusable: Unusable) -> Iterator[tuple[int, list[str]]]:
    """(place, fields) of the records of a csv.reader that are not blank.

    The first one, of names, has to be right, and so does a quote that nothing closes: all that follows is behind it.

    Args:
        before: lines above the first one.
    """
    has_names = False
    while True:
        place = before + reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            is_unclosed = "end of data" in str(error)
            left_out = unusable if has_names and not is_unclosed else refuse
            remedy = "look for an unclosed quote" if is_unclosed else "double each quote inside a quoted field"
            end = before + reader.line_num
            lines = f", with all up to line {end}," if end > place and not is_unclosed else ""
            left_out(source.shown, place, f"is not valid {source.format}{lines} ({error})", remedy)
            continue
        if fields is None:
            return
        if fields:
            yield place, fields
        has_names = True


def _names_of_columns(place: str, header: list[str], asked: set[str]) -> list[str]:
    """The header, once it is known to be one. Of columns without a name all but the first get one."""
    if any(map(is_text, header)) and asked.isdisjoint(header):
        raise PrepError(
            f"{place} holds texts where the names of columns should be: put a line of names at the top, such as "
            "id,text,label, or pass --text-column if these are names"
        )
    unnamed = [number for number, name in enumerate(header) if not name]
    names = [f"Unnamed: {number}" if number in unnamed[1:] else name for number, name in enumerate(header)]
    if twice := _repeated(names):
        raise _of_one_name(place, twice)
    return names


_DELIMITERS = ",;\t|"
_STATED_DELIMITER = re.compile(r'"?sep=(.)"?')
_QUOTED = re.compile(r'"[^"]*"')
_FIELD_REMEDY = {
    "csv": "put fields with commas in double quotes",
    "tsv": "a field can hold no tab and no line break, use .csv or .jsonl for such text",
}


def _parquet_rows(source: Source, meter: Meter, columns: list[str] | None) -> Rows:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        check_unchanged(source, os.stat(source.path))
        # A group of rows is read bit by bit: files have groups of a million.
        with parquet.ParquetFile(source.path, pre_buffer=False, buffer_size=1 << 20) as file:
            if twice := _repeated(file.schema_arrow.names):
                raise _of_one_name(source.shown, twice)
            for batch in file.iter_batches(batch_size=64, columns=columns):
                for row in _plain_rows(batch):
                    number += 1
                    # Of all that is read: who stops at this row asks how far it is.
                    meter.position = source.size * number // file.metadata.num_rows
                    yield number, row
            check_unchanged(source, os.stat(source.path))
    # Damage inside a file shows as text that is none, or as dates that are none.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReadingFailed(f"{source.shown} cannot be read ({error.strerror}); check its permissions") from None
        raise PrepError(f"{source.shown} cannot be read as parquet ({_reason(error)}); write it again") from None


def _reason(error: Exception) -> str:
    """The first line of what an error says, or its kind."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _plain_rows(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch of Arrow; times that Python has not (after the year 9999, or of a zone that it does not know)
    as text."""
    import pyarrow

    try:
        return batch.to_pylist()
    except (OverflowError, ValueError, pyarrow.ArrowInvalid):
        columns = [
            column.cast(pyarrow.timestamp(column.type.unit)).cast(pyarrow.string())
            if pyarrow.types.is_timestamp(column.type)
            else column
            for column in batch.columns
        ]
        return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()


def _hub_rows(source: Source) -> Rows:
    number = 0
    try:
        for number, row in enumerate(_hub_data(source), 1):
            yield number, row
    except PrepError:
        raise
    except Exception as error:
        # Whatever can go wrong in a network and in the files behind it.
        raise PrepError(
            f"hub:{source.name} broke off after row {number:,} ({_reason(error)}); give the same command again"
        ) from None


def _hub_data(source: Source) -> Any:
    """The rows of `owner/name[:configuration][:split]` on the Hub, streamed, or of a folder on this machine."""
    place, parts = place_and_parts(source.path)
    import datasets

    try:
        if any(os.path.isfile(os.path.join(place, file)) for file in ("state.json", "dataset_dict.json")):
            found = datasets.load_from_disk(place)
        else:
            found = datasets.load_dataset(place, _configuration(source, place, parts), streaming=True)
    except PrepError:
        raise
    except Exception as error:
        # Whatever can go wrong in a network, a cache and somebody else's data set.
        raise PrepError(
            f"hub:{source.name} cannot be opened ({_reason(error)}); check its name and the network"
        ) from None
    if not isinstance(found, dict):
        return _undecoded(found)
    split = parts[-1] if parts else "train" if "train" in found or len(found) > 1 else next(iter(found))
    if split not in found:
        raise PrepError(f'hub:{source.name} has no split "{split}"; write one of {listing(found)} after a colon')
    return _undecoded(found[split])


def _configuration(source: Source, place: str, parts: list[str]) -> str | None:
    """The configuration that a name asks for, which is taken out of its parts; None for the one that a data set has
    without being asked.

    Raises:
        PrepError: it has several and none is asked for, or has not the one that is.
    """
    import datasets

    configurations = datasets.get_dataset_config_names(place)
    if parts and parts[0] in configurations:
        return parts.pop(0)
    if len(parts) < 2 and datasets.get_dataset_default_config_name(place):
        return None
    has = f'no configuration "{parts[0]}"' if parts else f"{len(configurations)} configurations"
    raise PrepError(f"hub:{source.name} has {has}; write one of {listing(configurations)} after the first colon")


def _undecoded(found: Any) -> Any:
    """A data set whose pictures, sounds and the like stay bytes: nobody asks for them, and opening them takes time,
    more packages, and files that are whole."""
    import datasets

    # Before 4.7, datasets has no Json.
    kept = getattr(datasets, "Json", ())
    for name, kind in (found.features or {}).items():
        if getattr(kind, "decode", False) and not isinstance(kind, kept):
            found = found.cast_column(name, replace(kind, decode=False))
    return found
