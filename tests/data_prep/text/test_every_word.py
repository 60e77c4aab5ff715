"""A hundred files that are hard to read: every word of each is in a document, or the file is refused by its name."""

import csv
import gzip
import io
import json
import os

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.errors import PrepError
from data_prep.text.corpus import Corpus

ENGLISH = "The doctor’s café was “naïve”; the fiancée paid € 20 for a jalapeño. It was über all très chic, señor."
LANGUAGES = {
    "utf-8": ENGLISH,
    "utf-8-sig": ENGLISH,
    "utf-16": ENGLISH,
    "utf-32": ENGLISH,
    "cp1252": ENGLISH,
    "cp1251": "Пациент был осмотрен утром, и его состояние улучшилось. Лечение продолжается дома ещё неделю.",
    "shift_jis": "患者は朝に診察を受けた。その後、状態は良くなった。治療は家で続けられる。これは日本語の文です。",
    "gb18030": "病人早上接受了检查，情况有所好转。治疗将在家里继续进行一个星期。这是一个中文句子。",
    "euc_kr": "환자는 아침에 진찰을 받았고 상태가 좋아졌다. 치료는 집에서 일주일 동안 계속된다.",
}
ROWS = [("1", 'He said "no", twice.'), ("2", "two\nlines, one cell"), ("3", "a | b ; c\td"), ("4", "plain word")]
TEXTS = [text for _, text in ROWS]
BREAKS = {"LF": "\n", "CRLF": "\r\n", "CR": "\r"}


def words_of(texts: list[str]) -> list[str]:
    return " ".join(texts).split()


def encoded(encoding: str, line_break: str) -> tuple[str, bytes, list[str]]:
    lines = [f"{LANGUAGES[encoding]} {number}" for number in range(20)]
    return "notes.txt", (line_break.join(lines) + line_break).encode(encoding), words_of(lines)


def table(delimiter: str, quoting: int, line_break: str, mark: str) -> tuple[str, bytes, list[str]]:
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=line_break)
    writer.writerows([("id", "text"), *ROWS])
    return "rows.csv", (mark + written.getvalue()).encode(), words_of(TEXTS)


def as_parquet(values: pyarrow.Array, **options) -> bytes:
    written = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": values}), written, **options)
    return written.getvalue()


def as_jsonl(texts: list[str], between: str = "\n", **options) -> bytes:
    return between.join(json.dumps({"text": text}, **options) for text in texts).encode()


PLAIN = "one word and another\nthe second line\n\nthe second document\nits last line\n"
PACKED = gzip.compress(PLAIN.encode())
TEXT_LIST = ["first text", "second text", "third text"]
LETTERS = words_of([PLAIN])

# What it is called, its bytes, and its words; without words it has to be refused.
CASES = {
    f"{encoding} {name}": encoded(encoding, line_break) for encoding in LANGUAGES for name, line_break in BREAKS.items()
} | {
    f"csv {delimiter!r} {kind} {name} {'mark' if mark else ''}": table(delimiter, quoting, BREAKS[name], mark)
    for delimiter in ",;\t|" for kind, quoting in (("all", csv.QUOTE_ALL), ("few", csv.QUOTE_MINIMAL))
    for name in ("LF", "CRLF") for mark in ("", "\ufeff")
} | {
    "jsonl with blank lines": ("a.jsonl", as_jsonl(TEXTS, "\n\n\n"), words_of(TEXTS)),
    "jsonl with CRLF": ("a.jsonl", as_jsonl(TEXTS, "\r\n"), words_of(TEXTS)),
    "jsonl with a mark": ("a.jsonl", b"\xef\xbb\xbf" + as_jsonl(TEXTS), words_of(TEXTS)),
    "jsonl without escapes": ("a.jsonl", as_jsonl([ENGLISH], ensure_ascii=False), words_of([ENGLISH])),
    "jsonl with line separators": ("a.jsonl", as_jsonl(["a\u2028b", "c\x85d"], ensure_ascii=False), list("abcd")),
    "jsonl with pairs of surrogates": ("a.jsonl", as_jsonl(["smile 😀 now"]), ["smile", "😀", "now"]),
    "jsonl in UTF-16": ("a.jsonl", as_jsonl(TEXTS).decode().encode("utf-16"), words_of(TEXTS)),
    "jsonl of one array": ("a.jsonl", json.dumps([{"text": "a"}]).encode(), None),
    "jsonl cut off": ("a.jsonl", as_jsonl(TEXTS)[:-5], None),
    "jsonl of strings": ("a.jsonl", b'"a"\n"b"\n', None),
    "jsonl of nothing": ("a.jsonl", b"{}\n{}\n", None),
    "jsonl with a comment": ("a.jsonl", b'// rows\n{"text": "a"}\n', None),
    "two gz files in one": ("a.txt.gz", PACKED + gzip.compress(b"and more\n"), [*LETTERS, "and", "more"]),
    "gz of nothing and text": ("a.txt.gz", gzip.compress(b"") + PACKED, LETTERS),
    "gz cut off": ("a.txt.gz", PACKED[:-9], None),
    "gz with rubbish behind": ("a.txt.gz", PACKED + b"rubbish", None),
    "gz twice": ("a.txt.gz", gzip.compress(PACKED), None),
    "gz that is none": ("a.txt.gz", PLAIN.encode(), None),
    "gz of csv": ("a.csv.gz", gzip.compress(table(";", csv.QUOTE_ALL, "\r\n", "")[1]), words_of(TEXTS)),
    "gz in capital letters": ("A.TXT.GZ", PACKED, LETTERS),
    "gz called text": ("a.txt", PACKED, None),
    "parquet of large strings": ("a.parquet", as_parquet(pyarrow.array(TEXT_LIST, pyarrow.large_string())),
                                 words_of(TEXT_LIST)),
    "parquet with a dictionary": ("a.parquet", as_parquet(pyarrow.array(TEXT_LIST * 9).dictionary_encode()),
                                  words_of(TEXT_LIST * 9)),
    "parquet with gzip": ("a.parquet", as_parquet(pyarrow.array(TEXT_LIST), compression="gzip"), words_of(TEXT_LIST)),
    "parquet in many groups": ("a.parquet", as_parquet(pyarrow.array(TEXT_LIST * 99), row_group_size=7),
                               words_of(TEXT_LIST * 99)),
    "parquet with zstd": ("a.parquet", as_parquet(pyarrow.array(TEXT_LIST), compression="zstd"), words_of(TEXT_LIST)),
    "parquet of bytes": ("a.parquet", as_parquet(pyarrow.array([b"a", b"b"])), None),
    "parquet without rows": ("a.parquet", as_parquet(pyarrow.array([], pyarrow.string())), None),
    "parquet of nothing": ("a.parquet", as_parquet(pyarrow.nulls(9)), None),
    "parquet cut off": ("a.parquet", as_parquet(pyarrow.array(TEXT_LIST))[:-9], None),
    "text called parquet": ("a.parquet", PLAIN.encode(), None),
    "a space of every kind": ("a.txt", "a\u00a0b\u3000c\u2003d\u202fe\tf\vg\fh\n".encode(), list("abcdefgh")),
    "next line and line separator": ("a.txt", "a b\x85c d\u2028e f\u2029g\n".encode(), list("abcdefg")),
    "marks alone": ("a.txt", b"... !!! ???\n---\n\n***\n", ["...", "!!!", "???", "---", "***"]),
    "a thousand accents": ("a.txt", ("e" + "\u0301" * 1000 + " end\n").encode(), ["e" + "\u0301" * 1000, "end"]),
    "a mark in the middle": ("a.txt", "first \ufeffsecond\n".encode(), ["first", "\ufeffsecond"]),
    "no characters": ("a.txt", "a \ufffe \uffff \U0001fffe b\n".encode(), ["a", "\ufffe", "\uffff", "\U0001fffe", "b"]),
    "directions": ("a.txt", "\u202eright\u202c \u2066left\u2069\n".encode(), ["\u202eright\u202c", "\u2066left\u2069"]),
    "a megabyte without a space": ("a.txt", b"x" * 1_000_000 + b" end\n", ["x" * 1_000_000, "end"]),
    "a line break at the very end alone": ("a.txt", b"word", ["word"]),
    "all kinds of line breaks": ("a.txt", b"a\nb\r\nc\rd\n\re\r\r\nf", list("abcdef")),
    "a name in capital letters": ("NOTES.TXT", PLAIN.encode(), LETTERS),
    "a name with quotes and a star": ("a '\"*[b].txt", PLAIN.encode(), LETTERS),
    "a name of two hundred letters": ("n" * 200 + ".txt", PLAIN.encode(), LETTERS),
    "a name that begins with a dash": ("--corpus.txt", PLAIN.encode(), LETTERS),
    "thirty folders deep": ("/".join("d" * 30) + "/a.txt", PLAIN.encode(), LETTERS),
    "half a character at the end": ("a.txt", "wörter und größe\n".encode() * 9 + "ö".encode()[:1], None),
    "tsv with a quote": ("a.tsv", b'id\ttext\n1\tfive " inches\n2\tsix\n', ["five", '"', "inches", "six"]),
    "csv with a quote left open": ("a.csv", b'id,text\n1,"open\n2,other\n', None),
    "csv with a row too long": ("a.csv", b"id,text\n1,a,b,c\n", None),
    "csv of one column": ("a.csv", b"text\nfirst\nsecond\n", ["first", "second"]),
    "a folder called text": ("a.txt/b.txt", PLAIN.encode(), LETTERS),
}  # fmt: skip


def test_there_are_more_than_a_hundred():
    assert len(CASES) > 100


@pytest.mark.parametrize("name", CASES)
def test_every_word_is_read_or_the_file_is_refused(tmp_path, name):
    path, content, words = CASES[name]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(content)
    encoding = "utf-8" if path.lower().endswith(".parquet") else "auto"
    read = lambda: [line for each in Corpus([str(tmp_path)], encoding=encoding).documents() for line in each.lines]  # noqa: E731
    if words is None:
        with pytest.raises(PrepError) as error:
            read()
        said = str(error.value)
        assert "\n" not in said and (os.path.basename(path) in said or str(tmp_path) in said), said
    else:
        assert " ".join(words_of(read())) == " ".join(words)
