import csv
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data_prep.errors import PrepError
from data_prep.text import readers, rules
from data_prep.text.cells import group_of
from data_prep.text.corpus import Corpus
from data_prep.text.lines import Meter
from data_prep.text.sources import resolve

ROWS = [
    {"id": "1", "text": "First text.\nIts second line.", "who": "a"},
    {"id": "2", "text": "  ", "who": "b"},
    {"id": "3", "text": 'Third, with "quotes"', "who": "a"},
]


def write_rows(folder: Path, ending: str) -> Path:
    path = folder / f"rows.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
        return path
    with (
        gzip.open(path, "wt", encoding="utf-8", newline="")
        if ending.endswith("gz")
        else path.open("w", encoding="utf-8", newline="") as file
    ):
        if ending.startswith("jsonl"):
            file.writelines(json.dumps(row) + "\n" for row in ROWS)
        else:
            writer = csv.DictWriter(file, ROWS[0])
            writer.writeheader()
            writer.writerows(ROWS)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "csv.gz", "parquet"])
def test_a_row_is_a_document_whatever_the_format(tmp_path, ending):
    corpus = Corpus([str(write_rows(tmp_path, ending))], group_column="who")
    assert (corpus.rules[0].document, corpus.rules[0].text_column) == ("row", "text")
    for _ in range(2):
        documents = list(corpus.documents())
        assert [document.lines for document in documents] == [
            ["First text.", "Its second line."],
            ['Third, with "quotes"'],
        ]
        assert [document.group for document in documents] == ["a", "a"]
        assert (corpus.empty_documents, corpus.bad_rows.count, corpus.bad_rows.rows) == (0, 1, 3)
        assert corpus.bytes_read == corpus.total_bytes == os.path.getsize(tmp_path / f"rows.{ending}")
    place = {"jsonl": 3, "csv": 5, "parquet": 3}[ending.removesuffix(".gz")]
    assert documents[1].source == f"rows.{ending}:{place}"


def test_a_quote_in_tsv_is_a_letter(tmp_path, read):
    (tmp_path / "a.tsv").write_text('label\ttext\n1\t"Unclosed quote.\n0\tNext.\n')
    assert read(tmp_path / "a.tsv") == [['"Unclosed quote.'], ["Next."]]


def test_csv_with_semicolons(tmp_path, read):
    (tmp_path / "a.csv").write_text("id;text\n1;Commas, everywhere, here\n")
    assert read(tmp_path / "a.csv") == [["Commas, everywhere, here"]]


def test_a_look_at_the_beginning_takes_no_more_rows_than_it_needs():
    rows = ((n, {"text": "a" * 100, "more": 5}) for n in range(1000))
    assert len(list(rules._first_rows(rows, 450))) == 5 and next(rows)[0] == 5
    assert len(list(rules._first_rows(rows, 10**9))) == rules._SAMPLED_ROWS


def test_times_that_python_has_not_are_text(tmp_path, read):
    far = pyarrow.array([None, 10**15, 0], pyarrow.timestamp("s"))
    elsewhere = pyarrow.array([0, 1, 2], pyarrow.timestamp("ms", tz="Mars/Base"))
    table = pyarrow.table({"text": ["a", "b", "c"], "far": far, "elsewhere": elsewhere, "n": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "far.parquet")
    assert read(tmp_path / "far.parquet") == [["a"], ["b"], ["c"]]
    [source], _ = resolve([str(tmp_path / "far.parquet")])
    found = [row for _, row in readers.rows(source, "utf-8", Meter())]
    assert [row["n"] for row in found] == [1, 2, 3] and found[0]["far"] is None
    assert found[2]["far"].startswith("1970-01-01 00:00:00") and found[1]["elsewhere"].endswith("00.001")


@pytest.mark.parametrize("first", ["1\tIt", "1-2\tIt's", "0.1\t_"])
def test_conll_u_is_refused_where_its_last_column_would_be_the_tag(tmp_path, first):
    path = tmp_path / "a.conll"
    path.write_text(f"# text = It rained\n{first}\t_\tPRON" + "\t_" * 6 + "\n2\trained\t_\tVERB" + "\t_" * 6 + "\n")

    def words() -> list[list[str]]:
        (source,) = resolve([str(path)], labelled=True)[0]
        return [row["tokens"] for _, row in readers.rows(source, "utf-8", Meter())]

    with pytest.raises(PrepError, match=r"a\.conll:2 is a line of CoNLL-U: write word and tag alone"):
        words()
    path.write_text("1\tO\nIt\tO\n")
    assert words() == [["1", "It"]]


def test_a_group_of_rows_of_parquet_is_read_bit_by_bit(tmp_path):
    texts = np.random.default_rng(0).integers(97, 123, (20_000, 1_000), np.uint8).view("S1000").ravel().astype(str)
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False)
    [source], _ = resolve([str(tmp_path / "a.parquet")])
    before = pyarrow.total_allocated_bytes()
    next(found := readers.rows(source, "utf-8", Meter()))
    assert pyarrow.total_allocated_bytes() - before < source.size / 2
    found.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b"\n', r"^a\.jsonl:3 is not valid JSON .*one object"),
        ("a.jsonl", '{"text": "a"}\n["b"]\n', r"^a\.jsonl:2 is not a JSON object"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": 5}\n',
            r'^a\.jsonl:2 has a number in the column "text", .*--text-column',
        ),
        ("a.jsonl", '{"text": "a"}\n{"text": 0}\n', r'^a\.jsonl:2 has a number in the column "text"'),
        (
            "a.csv",
            'text,id\n"a\nb",1\nc,d,2\n',
            r"^a\.csv:4 has 3 fields where the first line has 2; .*quotes",
        ),
        ("a.csv", 'text,id\na,1\n"b,2\nc,3\n', r"^a\.csv:3 is not valid csv .*unclosed quote"),
        ("a.csv", 'text,id\na,1\n"b" c,2\n', r"^a\.csv:3 is not valid csv .*; double each quote inside"),
        ("a.csv", 'text,"i" d\na,1\n', r"^a\.csv:1 is not valid csv"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "n": 1, "n": 2}\n', r"^a\.jsonl:2 has two columns of the same name"),
        ("a.tsv", "text\tid\na\t1\nb\n", r"^a\.tsv:3 has 1 fields where the first line has 2"),
    ],
)
def test_broken_rows_are_named_with_their_line(tmp_path, name, content, message, refused):
    (tmp_path / name).write_text(content)
    refused(tmp_path / name, message, text_column="text")


@pytest.mark.parametrize(
    ("name", "content", "left_out"),
    [
        ("a.csv", 'text,id\na,1\n"b" c,2\n"d\ne",3\n"f" g,4\nh,5\n', ["a.csv:3", "a.csv:6"]),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "n": 1, "n": 2}\n{"text": "d\\ne"}\n{"text": "h"}\n', ["a.jsonl:2"]),
    ],
)
def test_every_row_that_cannot_be_read_can_be_left_out(tmp_path, name, content, left_out):
    (tmp_path / name).write_text(content)
    corpus = Corpus([str(tmp_path / name)], text_column="text", skip_bad_rows=True)
    assert [document.lines for document in corpus.documents()] == [["a"], ["d", "e"], ["h"]]
    assert [problem.split()[0] for problem in corpus.bad_rows.listed] == left_out


def test_lines_that_go_with_a_bad_row_are_named(tmp_path):
    (tmp_path / "a.csv").write_text('text,id\n"a,1\nb,2\n"c",3\nd,4\n')
    corpus = Corpus([str(tmp_path / "a.csv")], text_column="text", skip_bad_rows=True)
    assert [document.lines for document in corpus.documents()] == [["d"]]
    assert corpus.bad_rows.listed[0].startswith("a.csv:2 is not valid csv, with all up to line 4,")


@pytest.mark.parametrize("content", ['text,id\na,1\n"b,2\nc,3\n', 'text,"i" d\na,1\n'])
def test_what_hides_all_that_follows_is_never_left_out(tmp_path, content, refused):
    """A quote that nothing closes, and names of columns that cannot be read."""
    (tmp_path / "a.csv").write_text(content)
    refused(tmp_path / "a.csv", "is not valid csv", text_column="text", skip_bad_rows=True)


def test_a_line_of_names_may_hold_a_long_one(tmp_path, read, refused):
    question = "How would you rate the service that you got today from us?"
    table = tmp_path / "a.csv"
    table.write_text(f'"{question}",comment\n4,Very friendly .\n')
    assert read(table, text_column="comment") == [["Very friendly ."]]
    assert read(table, text_column=question) == [["4"]]
    for named in ({}, {"text_column": "note"}):
        refused(table, r"^a\.csv:1 holds texts where .* or pass --text-column if these are names", **named)


def test_the_text_column_is_found_or_asked_for(tmp_path):
    def column(row, **settings) -> str | None:
        (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
        return Corpus([str(tmp_path / "a.jsonl")], **settings).rules[0].text_column

    assert column({"id": "x" * 50, "abstract": "b", "content": "a"}) == "content"
    assert column({"text": 5, "abstract": "b"}) == "abstract"
    assert column({"id": 7, "note": "b"}) == "note"
    assert column({"title": "ab", "note": "abc", "tag": "x"}) == "note"
    assert column({"Url": "x" * 50, " Text": "b"}) == " Text"
    assert column({"text": "ab", "TEXT": "abc", "Content": "abcd"}) == "text"
    assert column({"text": "ab", "note": "abc"}, text_column="note") == "note"
    with pytest.raises(PrepError, match='has no column "sentence" among id, text; pass --text-column text'):
        column({"id": 7, "text": "a"}, text_column="sentence")
    with pytest.raises(PrepError, match=r"a\.jsonl has no column that .*: id, size, which hold a number"):
        column({"id": 7, "size": 8})
    with pytest.raises(PrepError, match=r'no column "txt" among id, text; pass --text-column text'):
        column({"id": 7, "text": "a"}, text_column="txt")
    with pytest.raises(PrepError, match=r'no column "patients" among patient, text; pass --group-column patient'):
        column({"patient": 7, "text": "a"}, group_column="patients")


def test_where_no_text_may_be_shown_a_row_is_not_taken_for_names_of_columns(tmp_path):
    table = tmp_path / "letters.csv"
    table.write_text("7,Mrs Quixbert fell\n8,She is well again\n")
    for changes in ({}, {"text_column": "letter"}, {"group_column": "patient", "text_column": "8"}):
        with pytest.raises(PrepError, match=r"letters\.csv has no .*--(text|group)-column|add a column") as refusal:
            Corpus([str(table)], show_text=False, **changes)
        assert "Quixbert" not in str(refusal.value)
    with pytest.raises(PrepError, match=r'no column "letter" among 7, Mrs Quixbert fell'):
        Corpus([str(table)], text_column="letter")
    table.write_text("id,text\n7,Mrs Quixbert fell\n")
    assert Corpus([str(table)], show_text=False).rules[0].text_column == "text"
    table.write_text("id,letter\n7,Mrs Quixbert fell\n")
    assert Corpus([str(table)], show_text=False, text_column="letter").rules[0].text_column == "letter"


@pytest.mark.parametrize(
    ("value", "group"),
    [("a", "a"), (" a  b", "a b"), ("", None), (" ", None), (None, None), (7, "7"), (7.0, "7"), (7.5, "7.5"),
     ("7.0", "7"), ("-7.00", "-7"), ("7.05", "7.05"), ("1.7.0", "1.7.0"), (float("nan"), None), (0, "0"),
     (False, "false"), ("007", "7"), ("-07", "-7"), ("000", "0"), ("0.70", "0.70"), ("٧", "٧"), ("\uff17", "7"),
     ("Jose\u0301", "jos\u00e9"), ("JOS\u00c9", "jos\u00e9"), ("A\u00a07", "a 7")],
)  # fmt: skip
def test_whose_row_it_is(value, group):
    assert group_of({"who": value}, "who") == group
    assert group_of({"who": value}, None) is None and group_of({}, "who") is None


def test_a_later_file_without_the_column_is_an_error_not_an_empty_file(tmp_path, refused):
    for number in range(40):
        row = {"body": "b"} if number == 39 else {"text": "a"}
        (tmp_path / f"{number:02}.jsonl").write_text(json.dumps(row) + "\n")
    refused(tmp_path, r'^39\.jsonl has no column "text" among body')
