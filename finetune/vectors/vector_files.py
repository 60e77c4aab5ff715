"""Files of vectors, written row by row: .npy, JSON lines, .parquet."""

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.text.cells import whole_characters

from ..output import to_json
from ..settings import FinetuneError

Row = dict[str, Any]

VECTOR, VECTORS = "vector", "vectors"
# Of the lines that are read at once; as numbers of Python they take three times as much and more.
_BYTES_AT_ONCE = 8_000_000
_KINDS = {
    VECTOR: pa.list_(pa.float32()),
    VECTORS: pa.list_(pa.list_(pa.float32())),
    "words": pa.list_(pa.string()),
    "tokens": pa.list_(pa.string()),
    "start": pa.list_(pa.int64()),
    "end": pa.list_(pa.int64()),
}


class NumpyFile:
    """Vectors as the rows of a .npy file, NaN for a row that has none.

    Args:
        file: takes bytes, and is at its end.
        width: H.
        dtype: float32 or float16.
        rows: that it has already.
    """

    def __init__(self, file: IO[bytes], width: int, dtype: str, rows: int = 0):
        self.file, self.width, self.dtype, self.rows = file, width, np.dtype(dtype), rows
        if not rows:
            self._write_header()

    def write(self, rows: Sequence[Row], found: Sequence[Row | None]) -> None:
        """Write the vectors of rows, whose other columns are left out."""
        vectors = np.full((len(found), self.width), np.nan, dtype=self.dtype)
        for place, each in enumerate(found):
            if each is not None:
                vectors[place] = each[VECTOR]
        self.file.write(vectors.tobytes())
        self.rows += len(found)

    def close(self) -> None:
        """Put the number of rows into the header, which has room for any number."""
        self._write_header()

    def _write_header(self) -> None:
        made = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self.dtype)
        facts = {"descr": descr, "fortran_order": False, "shape": (self.rows, self.width)}
        np.lib.format.write_array_header_1_0(made, facts)
        self.file.seek(0)
        self.file.write(made.getvalue())
        self.file.seek(0, os.SEEK_END)


class LinesFile:
    """Rows with their vectors as JSON lines, null for a row that has none.

    Args:
        file: takes text.
        names: of what is added to a row.
    """

    def __init__(self, file: IO[str], names: Sequence[str]):
        self.file, self.names = file, names

    def write(self, rows: Sequence[Row], found: Sequence[Row | None]) -> None:
        """Write rows.

        Raises:
            FinetuneError: a column of the input has the name of one of ours.
        """
        for row, each in zip(rows, found, strict=True):
            if taken := [name for name in self.names if name in row]:
                raise FinetuneError(
                    f'the input has a column "{taken[0]}" already: rename it (of .conll: give the texts in .txt)'
                )
            own = each or dict.fromkeys(self.names)
            begin = to_json(row)[:-1] + ", " * bool(row)
            self.file.write(begin + ", ".join(f'"{name}": {_json(own[name])}' for name in self.names) + "}\n")

    def close(self) -> None:
        """Nothing stands behind the last row."""


def _json(value: Any) -> str:
    """Numbers of a vector with 9 digits, which name every float32 exactly."""
    if not isinstance(value, np.ndarray):
        return json.dumps(value, ensure_ascii=False)
    if value.ndim > 1:
        return "[" + ", ".join(map(_json, value)) + "]"
    return "[" + ", ".join(map("%.9g".__mod__, value.tolist())) + "]"


def to_parquet(lines: Path, target: Path, names: Sequence[str]) -> None:
    """JSON lines (see `LinesFile`) to a table of the same columns, a part at a time.

    Columns of the input keep numbers, texts, true and false, and lists of one kind of these; what is mixed or nested
    becomes text, the latter as JSON.

    Args:
        names: of what was added to the rows.
    """
    kinds: dict[str, pa.DataType] = {}
    negative = set()
    for rows in _rows(lines):
        for name in dict.fromkeys(name for row in rows for name in row if name not in names):
            values = [row.get(name) for row in rows]
            found = _kind(values)
            kinds[name] = _joined(kinds[name], found) if name in kinds else found
            if any(type(value) is int and value < 0 for value in values):
                negative.add(name)
    for name, kind in kinds.items():
        if pa.types.is_null(kind) or (pa.types.is_uint64(kind) and name in negative):
            kinds[name] = pa.string()
    kinds |= {name: _KINDS[name] for name in names}
    shown = [whole_characters(name) for name in kinds]
    with pq.ParquetWriter(target, pa.schema(zip(shown, kinds.values(), strict=True))) as table:
        for rows in _rows(lines):
            columns = [_column([row.get(name) for row in rows], kind) for name, kind in kinds.items()]
            table.write_table(pa.Table.from_arrays(columns, names=shown))


def _rows(lines: Path) -> Iterator[list[Row]]:
    with open(lines, "rb") as file:
        while part := file.readlines(_BYTES_AT_ONCE):
            yield list(map(json.loads, part))


def _kind(values: Sequence[Any]) -> pa.DataType:
    """The type of a column; text where there is no single one."""
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeError):
        given = [value for value in values if value is not None]
        if all(type(value) is int for value in given):
            # A hash may have 64 bits. What is longer becomes text.
            return pa.uint64() if max(given) < 1 << 64 and min(given) > -(1 << 63) else pa.string()
        return pa.float64() if all(map(_is_number, values)) else pa.string()
    inner = kind.value_type if pa.types.is_list(kind) else kind
    return pa.string() if pa.types.is_nested(inner) else kind


def _is_number(value: Any) -> bool:
    """Whether it is missing, or a number that a float can be near to."""
    is_near = not isinstance(value, int) or value.bit_length() < 1000
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and is_near)


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both."""
    if one == other:
        return one
    if pa.uint64() in (one, other):
        (another,) = {one, other} - {pa.uint64()}
        if pa.types.is_floating(another):
            return another
        return pa.uint64() if pa.types.is_int64(another) or pa.types.is_null(another) else pa.string()
    schemas = [pa.schema([("x", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return pa.string()


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([None if value is None else _text(value) for value in values], kind)
    if pa.types.is_floating(kind):
        # Whole numbers of any size.
        return pa.array(_floats(values), kind)
    if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        return pa.array([None if value is None else _floats(value) for value in values], kind)
    return pa.array(values, kind)


def _floats(values: Sequence[Any]) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


def _text(value: Any) -> str:
    return whole_characters(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
