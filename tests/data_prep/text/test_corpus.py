import csv
import datetime
import glob
import gzip
import json
import os
import re
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.text import readers, rules, sources
from data_prep.text.cells import group_of
from data_prep.text.corpus import Corpus
from data_prep.text.lines import Meter
from data_prep.text.rules import LARGE_FILE
from data_prep.text.sources import Exclusion, resolve

DATA = Path(__file__).parents[4] / "shared" / "data"
LONG = "It was a long line of many words about nothing at all. " * 6
ROWS = [
    {"id": "1", "text": "First text.\nIts second line.", "who": "a"},
    {"id": "2", "text": "  ", "who": "b"},
    {"id": "3", "text": 'Third, with "quotes"', "who": "a"},
]


def needs(name: str):
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"{name} is not on this machine")


def read(*paths, **settings) -> list[list[str]]:
    return [document.lines for document in Corpus([str(path) for path in paths], **settings).documents()]


def refused(path, message: str, **settings) -> None:
    """Making the corpus or reading it fails with a message that matches, the folder of the test left out."""
    with pytest.raises(PrepError) as error:
        list(Corpus([str(path)], **settings).documents())
    shown = str(error.value).replace(f"{path}/", "").replace(f"{os.path.dirname(path)}/", "")
    assert re.search(message, shown), shown


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


def test_a_quote_in_tsv_is_a_letter(tmp_path):
    (tmp_path / "a.tsv").write_text('label\ttext\n1\t"Unclosed quote.\n0\tNext.\n')
    assert read(tmp_path / "a.tsv") == [['"Unclosed quote.'], ["Next."]]


def test_csv_with_semicolons(tmp_path):
    (tmp_path / "a.csv").write_text("id;text\n1;Commas, everywhere, here\n")
    assert read(tmp_path / "a.csv") == [["Commas, everywhere, here"]]


def test_blank_lines_between_blocks_separate_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\none\ntwo\n\n \nthree\nfour\nfive\n\nsix\nseven")
    corpus = Corpus([str(path)])
    assert corpus.rules[0].document == "blank-line"
    assert [(d.lines, d.source) for d in corpus.documents()] == [
        (["one", "two"], "a.txt:3"),
        (["three", "four", "five"], "a.txt:7"),
        (["six", "seven"], "a.txt:11"),
    ]


@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        (["a paragraph\n\nanother\n\na third\n\nfour\nfive"], "file"),
        (["a\nb\n", "c\nd\n"], "file"),
        (["a\nb\nc\n"], "file"),
        ([(LONG + "\n") * 3], "line"),
        ([(LONG + "\n") * 3, LONG], "file"),
        (["a\nb\n", "c\nd\n\ne\nf"], "blank-line"),
        (["病人的心率在治疗前后都有记录，变化不大。\n" * 3], "file"),
        (["病人的心率在治疗前后都有记录，变化不大。" * 8 + "\n"], "line"),
        (["ผู้ป่วยได้รับการตรวจวัดอัตราการเต้นของหัวใจ\n" * 3], "file"),
        (["ผู้ป่วยได้รับการตรวจวัดอัตราการเต้นของหัวใจ" * 8 + "\n"], "line"),
    ],
)
def test_what_a_document_is_found_from_the_text(tmp_path, texts, rule):
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    assert Corpus([str(tmp_path)]).rules[0].document == rule


@pytest.mark.parametrize(("line", "is_said"), [(LONG, True), ("A sentence of a long article.", False)])
def test_a_stray_blank_line_among_long_lines_is_noticed(tmp_path, line, is_said):
    (tmp_path / "a.txt").write_text((line + "\n") * 60 + "\n" + (line + "\n") * 80)
    (rules,) = Corpus([str(tmp_path)]).rules
    assert rules.document == "blank-line" and ("give --document line" in rules.why) == is_said


def test_documents_of_megabytes_are_told_apart(tmp_path):
    novel = "A paragraph of a novel of many pages.\n" * 80_000
    (tmp_path / "a.txt").write_text(novel + "\n" + novel)
    assert [len(lines) for lines in read(tmp_path / "a.txt")] == [80_000, 80_000]


def test_progress_grows_to_the_bytes_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.lines._SMALL_CHUNK", 1 << 12)
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("a line\n" * (1 + number * 10_000))
    corpus = Corpus([str(tmp_path)], document="line")
    seen = [corpus.bytes_read for _ in corpus.documents()]
    assert seen == sorted(seen) and len(set(seen)) > 5
    assert corpus.bytes_read == corpus.total_bytes == len("a line\n") * (5 + 10 * 10_000)


def test_a_document_as_asked(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n\nc\n")
    (tmp_path / "empty.txt").write_text("\n")
    assert read(tmp_path, document="file") == [["a", "b", "c"]]
    assert read(tmp_path, document="line") == [["a"], ["b"], ["c"]]
    assert read(tmp_path, document="blank-line") == [["a", "b"], ["c"]]
    corpus = Corpus([str(tmp_path)], document="file")
    list(corpus.documents())
    assert corpus.empty_documents == 1


def test_lines_are_sentences_where_few_would_split_further(tmp_path):
    path = tmp_path / "a.txt"
    single, double = "This is one sentence.\n", "This is one. This is two.\n"
    for share, rule in ((0.08, "sentence"), (0.12, "paragraph")):
        path.write_text(double * int(100 * share) + single * int(100 * (1 - share)))
        corpus = Corpus([str(path)])
        assert corpus.rules[0].line == rule
        assert len(corpus.rules[0].sentences()) == 2
    assert Corpus([str(path)], line="sentence").rules[0].line == "sentence"


def test_a_few_enormous_paragraphs_among_headings_are_split(tmp_path):
    headings = [f"On matters of kind {number}" for number in range(3000)]
    headings.insert(1501, "It was raining again. Nobody went out. " * 3000)
    (tmp_path / "a.txt").write_text("\n".join(headings))
    corpus = Corpus([str(tmp_path / "a.txt")], document="file")
    assert corpus.rules[0].line == "paragraph"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30))
def test_the_share_that_would_be_split_is_one_of_the_text(tmp_path_factory, parts):
    lines = [" ".join(["word"] * words) + (" end. Another here." if splits else " one.") for words, splits in parts]
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("\n".join(lines))
    expected = sum(len(line) for line, (_, splits) in zip(lines, parts, strict=True) if splits) / sum(map(len, lines))
    found = re.search(r"(\d+)% of the sampled text", Corpus([str(path)], document="file", line="auto").rules[0].why)
    assert abs(int(found[1]) / 100 - expected) < 0.02


@pytest.mark.parametrize("space", ["\u2028", "\x0b", "\x0c", "\x85", "\x1c"])
def test_the_rules_of_rows_are_found_from_the_lines_that_are_read(tmp_path, space):
    """Only a line feed, CR LF and CR end a line: these rows are paragraphs, whatever stands between their sentences."""
    rows = [{"text": f"It rained on day {n}.{space}Nobody came out.\r\nIt went on. All slept."} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = Corpus([str(tmp_path / "a.jsonl")])
    assert {len(document.lines) for document in corpus.documents()} == {2}
    assert "100% of the sampled text stands in lines that would be split further" in corpus.rules[0].why


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("aé가𝒳\n \r\t\u2028"), min_size=1, max_size=80),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030"]),
)
def test_lines_are_those_python_reads_whatever_the_encoding(tmp_path_factory, text, encoding):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode(encoding))
    with path.open(encoding=encoding) as file:
        expected = [line for line in map(str.strip, file) if line]
    assert read(path, encoding=encoding, document="file") == ([expected] if expected else [])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_characters_and_line_ends_across_the_edges_of_what_is_read_at_once(tmp_path, encoding):
    lines = [f"{number} é가𝒳 " + "x" * (number % 7) for number in range(120_000)]
    with (tmp_path / "a.txt").open("w", encoding=encoding, newline="") as file:
        file.write("\r\n".join(lines))
    assert read(tmp_path / "a.txt", encoding=encoding, document="file") == [[line.strip() for line in lines]]


def test_a_byte_order_mark_is_no_text_and_crlf_is_a_line_end(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n\r\nthree\rfour".encode())
    assert read(tmp_path / "a.txt", document="blank-line") == [["one", "two"], ["three", "four"]]
    (tmp_path / "a.csv").write_bytes("\ufefftext,id\r\none,1\r\n".encode())
    assert read(tmp_path / "a.csv", text_column="text") == [["one"]]


def test_half_a_surrogate_pair_does_not_reach_the_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b \\ud83d\\ude00"}\n')
    assert read(tmp_path / "a.jsonl") == [["a \ufffd b 😀"]]
    (tmp_path / "a.txt").write_text("a \\ud83d b")
    assert read(tmp_path / "a.txt", encoding="unicode_escape") == [["a \ufffd b"]]


def test_folders_globs_and_files_give_each_file_once_in_order(tmp_path, monkeypatch):
    for name in ("b.txt", "a/z.txt", "a/a.txt.gz", "a/notes.md", ".hidden/x.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    corpus = Corpus([str(tmp_path), str(tmp_path / "b.txt"), str(tmp_path / "*.txt")])
    assert [name for name, _ in corpus.files] == ["a/a.txt.gz", "a/z.txt", "b.txt"]
    assert corpus.ignored == ["a/notes.md"]
    assert [document.lines for document in corpus.documents()] == [["a/a.txt.gz"], ["a/z.txt"], ["b.txt"]]
    monkeypatch.chdir(tmp_path)
    assert read("**/*.txt*") == [["a/a.txt.gz"], ["a/z.txt"], ["b.txt"]]
    (tmp_path / "broken.txt").symlink_to(tmp_path / "gone.txt")
    assert Corpus(["*.txt"]).ignored == ["broken.txt"] and read("*.txt") == [["b.txt"]]
    assert read("b.txt", "a") == [["b.txt"], ["a/a.txt.gz"], ["a/z.txt"]]


def test_links_to_folders_are_left_out_of_patterns_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("notes/a.txt", "notes/deep/b.txt", "other/s.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    for link, to in (("lnk", "../other"), ("self", "."), ("self2", ".")):
        Path("notes", link).symlink_to(to)
    for pattern, found in (
        ("notes/**/*.txt", ["a.txt", "b.txt"]),
        ("notes/**", ["a.txt", "deep/b.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "s.txt"]),
        ("notes/*", ["a.txt", "b.txt"]),
        ("notes/*/*.txt", ["b.txt"]),
    ):
        corpus = Corpus([pattern])
        assert sorted(os.path.basename(name) for name, _ in corpus.files) == [os.path.basename(name) for name in found]
        assert {"lnk", "self", "self2"} >= set(map(os.path.basename, corpus.ignored))
    assert set(Corpus(["notes/*"]).ignored) == {"lnk", "self", "self2"}
    # A link that a person names is followed.
    assert read("notes/lnk/*.txt") == read("notes/lnk") == [["other/s.txt"]]


def files(paths):
    return {os.path.realpath(path) for path in paths if os.path.isfile(path)}


@given(st.lists(st.sampled_from(["**", "*", "a", "b*", "[ab]", "c.txt", "*.txt", ".h"]), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_patterns_find_what_those_of_python_find(many_files, parts):
    os.chdir(many_files)
    for pattern in ("/".join(parts), "./" + "/".join(parts), f"{many_files}/" + "/".join(parts)):
        ours, theirs = sources._matches(pattern), glob.glob(pattern, recursive=True)
        below = {path for folder in ours if os.path.isdir(folder) for path in glob.glob(folder + "/**", recursive=True)}
        assert files(ours) <= files(theirs) <= files([*ours, *(below if parts[-1] == "**" else ())])


@pytest.fixture
def many_files(tmp_path, monkeypatch):
    for name in ("c.txt", "a/c.txt", "a/b/c.txt", "b1/a/b/c.txt", ".h/c.txt", "a/.h/c.txt", "b2/d.md", "a/[ab]/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_a_pattern_finds_is_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    os.mkfifo(tmp_path / "p.txt")
    corpus = Corpus([f"{tmp_path}/*.txt"])
    assert [name for name, _ in corpus.files] == ["a.txt"] and corpus.ignored == ["p.txt"]


def test_a_folder_that_is_left_out_may_be_unreadable(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refused(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PrepError, match="closed cannot be read"):
        resolve([str(tmp_path)])
    for pattern in ("closed/", "closed/*", f"{tmp_path}/closed/"):
        assert [source.name for source in resolve([str(tmp_path)], Exclusion((pattern,)))[0]] == ["a.txt"]


def test_many_blank_lines_take_no_memory(tmp_path):
    (tmp_path / "a.txt").write_text("one\n" + "\n" * 300_000 + "two\n")
    corpus = Corpus([str(tmp_path / "a.txt")], document="file")
    tracemalloc.start()
    try:
        assert [document.lines for document in corpus.documents()] == [["one", "two"]]
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()


def test_a_look_at_the_beginning_takes_no_more_rows_than_it_needs():
    rows = ((n, {"text": "a" * 100, "more": 5}) for n in range(1000))
    assert len(list(rules._first_rows(rows, 450))) == 5 and next(rows)[0] == 5
    assert len(list(rules._first_rows(rows, 10**9))) == rules._SAMPLED_ROWS


def test_times_that_python_has_not_are_text(tmp_path):
    far = pyarrow.array([None, 10**15, 0], pyarrow.timestamp("s"))
    elsewhere = pyarrow.array([0, 1, 2], pyarrow.timestamp("ms", tz="Mars/Base"))
    table = pyarrow.table({"text": ["a", "b", "c"], "far": far, "elsewhere": elsewhere, "n": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "far.parquet")
    assert read(tmp_path / "far.parquet") == [["a"], ["b"], ["c"]]
    [source], _ = resolve([str(tmp_path / "far.parquet")])
    found = [row for _, row in readers.rows(source, "utf-8", Meter())]
    assert [row["n"] for row in found] == [1, 2, 3] and found[0]["far"] is None
    assert found[2]["far"].startswith("1970-01-01 00:00:00") and found[1]["elsewhere"].endswith("00.001")


def test_a_group_of_rows_of_parquet_is_read_bit_by_bit(tmp_path):
    texts = np.random.default_rng(0).integers(97, 123, (20_000, 1_000), np.uint8).view("S1000").ravel().astype(str)
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False)
    [source], _ = resolve([str(tmp_path / "a.parquet")])
    before = pyarrow.total_allocated_bytes()
    next(found := readers.rows(source, "utf-8", Meter()))
    assert pyarrow.total_allocated_bytes() - before < source.size / 2
    found.close()


def test_what_this_tool_wrote_is_no_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.txt", "in/run/final/vocab.txt", "in/run/prepared/tokenizer/vocab.txt", "in/more/b.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    for name in ("settings.yaml", "metrics.jsonl"):
        Path("in/run", name).touch()
    for paths in (["in"], ["in/*"], ["in/**"], ["in/**/*.txt"], ["*"], ["./*/*"], [f"{tmp_path}/in/*"]):
        corpus = Corpus(paths)
        assert sorted(document.lines[0] for document in corpus.documents()) == ["in/a.txt", "in/more/b.txt"]
        assert [name.endswith("run/ (a run or a model)") for name in corpus.ignored] == [True], paths
    exclude = Exclusion(["vocab.txt"])
    assert len(Corpus(["in/**/*.txt"], exclude=exclude).files) == 2
    exclude.check(["in/**/*.txt"])
    refused("in/ru*", r"ru\* holds no file that can be read \(only runs and models are there\)")
    # Predictions are often saved in the folder of a model.
    assert [source.name for source in resolve(["in/*/final/*.txt"], labelled=True)[0]] == ["vocab.txt"]
    # What a person names is read.
    assert read("in/run/final/*.txt") == [["in/run/final/vocab.txt"]]
    Path("in/more/.work").mkdir()
    assert read("in/more") == [["in/more/b.txt"]]
    refused(tmp_path / "in" / "run", "run is the folder of a run or a model; give your text")


def test_the_digest_is_of_names_and_contents_not_of_places(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("text")
        write_rows(tmp_path / folder, "jsonl.gz")
    shutil.copy(tmp_path / "one" / "rows.jsonl.gz", tmp_path / "two")
    first, second = (Corpus([str(tmp_path / folder)]) for folder in ("one", "two"))
    assert first.digest() == first.digest() == second.digest()
    (tmp_path / "two" / "a.txt").write_text("Text")
    assert Corpus([str(tmp_path / "two")]).digest() != first.digest()
    (tmp_path / "two" / "a.txt").write_text("text")
    (tmp_path / "two" / "a.txt").rename(tmp_path / "two" / "b.txt")
    assert Corpus([str(tmp_path / "two")]).digest() != first.digest()


def test_missing_and_unusable_paths_say_what_is_there(tmp_path):
    (tmp_path / "cases.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "slides.pdf").write_text("a")
    (tmp_path / "slides.pptx").write_text("a")
    (tmp_path / "zero.txt").write_text("")
    refused(tmp_path / "case.txt", r"case\.txt does not exist; the nearest name in its folder is cases\.txt")
    refused(tmp_path / "no" / "a.txt", "does not exist: there is no folder .*no")
    refused(tmp_path / "slides.pdf", r"slides\.pdf is of no known format; \.pdf is .* give .*\.jsonl.*\.parquet")
    refused(tmp_path / "slides.pptx", r"slides\.pptx is of no known format; give .*\.jsonl.*\.parquet")
    refused(tmp_path / "empty", r"empty holds no file that can be read \(nothing is there\); give .*\.txt")
    refused(tmp_path / "*.pdf", r"\(1 files of other formats\)")
    refused(tmp_path / "zero.txt", r"zero\.txt holds no bytes at all")
    with pytest.raises(PrepError, match="No text is named"):
        Corpus([])


@pytest.mark.parametrize("name", ["bad.txt", "bad.txt.gz"])
def test_an_invalid_byte_is_named_with_its_place(tmp_path, name):
    # Behind the first megabyte, after a character that lies across its edge.
    content = b"x" * ((1 << 20) - 1) + "é".encode() + b"\n" + b"caf\xe9 au lait\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    place = content.index(b"\xe9 au")
    refused(tmp_path / name, rf"^{name}:2 is not valid utf-8 at byte {place} \(0xe9\): .*--encoding")


def test_a_character_cut_off_at_the_end_is_named_with_its_place(tmp_path):
    (tmp_path / "a.txt").write_bytes("abc é".encode()[:-1])
    refused(tmp_path / "a.txt", r"a\.txt:1 is not valid utf-8 at byte 4 \(0xc3\)")


@pytest.mark.parametrize(
    ("ending", "program"), [("docx", "pandoc"), ("odt", "pandoc"), ("HTML", "trafilatura"), ("pdf", r"pdfminer\.six")]
)
def test_documents_of_offices_are_refused_with_what_makes_text_of_them(tmp_path, ending, program):
    (tmp_path / "in").mkdir()
    for name in (f"a.{ending}", f"b.{ending}", "picture.png"):
        (tmp_path / "in" / name).write_bytes(b"PK")
    remedy = rf"; \.{ending.lower()} is made into text with {program} \(docs/your_text\.md .*, or give text"
    refused(tmp_path / "in", r"holds no file that can be read \(3 files of other formats\)" + remedy)
    refused(tmp_path / "in" / f"a.{ending}", "is of no known format" + remedy)
    page = (Path(__file__).parents[3] / "docs" / "your_text.md").read_text()
    assert re.search(rf"{program}.*```bash\n.*```\n.*`\.{ending.lower()}`", page, re.DOTALL)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path, monkeypatch):
    good, bad = b"It rained on that day.\n", b"caf\xe9\n"
    for folder in ("one", "two", "three/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "notes.txt").write_bytes(bad if folder == "two" else good)
        (tmp_path / folder / "rows.jsonl").write_text('{"note": 5}\n' if "deep" in folder else '{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    for paths in (["one", "two"], ["one/notes.txt", "two/notes.txt"], ["*/notes.txt"], ["."]):
        with pytest.raises(PrepError, match=r"^two/notes\.txt:1 is not valid utf-8"):
            list(Corpus(paths).documents())
    with pytest.raises(PrepError, match=r"^three/deep/rows\.jsonl has no col.* --exclude three/deep/rows\.jsonl\."):
        Corpus(["one/rows.jsonl", "three"])
    left = Exclusion(["three/deep/rows.jsonl"])
    assert len(Corpus(["one/rows.jsonl", "three"], exclude=left).files) == 2
    (tmp_path / "three" / "deep" / "rows.jsonl").write_text('{"text": 5}\n')
    # What is prepared does not depend on where it was found, and its report names no folder above.
    skipped = Corpus(["one/rows.jsonl", str(tmp_path / "three")], skip_bad_rows=True, text_column="text")
    list(skipped.documents())
    assert skipped.bad_rows.listed[0].startswith("deep/rows.jsonl:1 has a number")
    assert skipped.digest() == Corpus([str(tmp_path / "one/rows.jsonl"), "three"], text_column="text").digest()


def test_files_can_be_left_out(tmp_path):
    for name in ("a.txt", "b.txt", "in/a.txt", "in/c.jsonl", "in/deep/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"id": 1, "x": 2}' if name.endswith("jsonl") else f"Words of {name}.")

    def left(*patterns):
        exclude = Exclusion(patterns)
        corpus = Corpus([str(tmp_path)], exclude=exclude)
        exclude.check([str(tmp_path)])
        return [name for name, _ in corpus.files]

    assert left("*.jsonl") == ["a.txt", "b.txt", "in/a.txt", "in/deep/d.txt"]
    assert left("c.jsonl", "a.txt") == ["b.txt", "in/deep/d.txt"]
    assert left("in/*") == left("in/") == ["a.txt", "b.txt"]
    assert left(str(tmp_path / "in/a.txt"), "c.jsonl") == ["a.txt", "b.txt", "in/deep/d.txt"]
    with pytest.raises(PrepError, match=r"--exclude \[ab\].txt names no file"):
        left("c.jsonl", "[ab].txt")
    (tmp_path / "b.txt").rename(tmp_path / "b [2].txt")
    assert left("b [2].txt", "in/") == ["a.txt"]
    with pytest.raises(PrepError, match="--exclude d.jsonl names no file in"):
        left("c.jsonl", "d.jsonl")
    with pytest.raises(PrepError, match="--exclude leaves nothing of"):
        left("*")
    refused(tmp_path, r"in/c\.jsonl has no column that .* columns: id, x, which hold .*\); .* --exclude in/c\.jsonl")


def test_encodings_that_do_not_fit(tmp_path):
    (tmp_path / "é.txt").write_text("Ein Ö, ein Á.", encoding="utf-8")
    refused(tmp_path / "é.txt", "is not valid cp1252 .* it may be UTF-8; .*leave --encoding out", encoding="cp1252")
    (tmp_path / "wide.txt").write_text("text", encoding="utf-16")
    (tmp_path / "bare.txt").write_text("text", encoding="utf-16-le")
    (tmp_path / "data.txt").write_bytes(b"PK\x03\x04\x00\x00")
    refused(tmp_path / "wide.txt", r"wide\.txt is utf-16 text, not utf-8: pass --encoding utf-16")
    refused(tmp_path / "bare.txt", "no byte order mark; pass --encoding utf-16-le", encoding="utf-16")
    refused(tmp_path / "data.txt", r"data\.txt looks like a binary file \(a zero byte at 4\)")
    refused(tmp_path / "wide.txt", '"utf8x" is not a text encoding; pass --encoding .*utf8', encoding="utf8x")
    refused(tmp_path / "wide.txt", '"rot13" is not a text encoding', encoding="rot13")
    for name, of_windows in (("ANSI", "cp1252"), ("Unicode", "utf-16")):
        refused(tmp_path / "wide.txt", f'"{name}" is not .*; pass --encoding {of_windows}', encoding=name)
    for name in ("base64", "mbcs", "unicode-internal", "hex"):
        with pytest.raises(PrepError, match="is not a text encoding") as refusal:
            Corpus([str(tmp_path / "wide.txt")], encoding=name)
        for proposed in re.split(r" or ", re.search(r"pass --encoding (.*)\.$", str(refusal.value))[1]):
            "".encode(proposed)
    (tmp_path / "code.txt").write_text("a b-c !!")
    refused(tmp_path / "code.txt", "is not valid punycode .* it may be UTF-8", encoding="punycode")


def test_damaged_files_are_named(tmp_path):
    whole = gzip.compress(os.urandom(50_000).hex().encode())
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-9000])
    (tmp_path / "not.txt.gz").write_text("plain text")
    (tmp_path / "flipped.txt.gz").write_bytes(whole[:-8] + bytes(255 - byte for byte in whole[-8:]))
    (tmp_path / "a.parquet").write_text("not parquet")
    for name in ("cut", "not", "flipped"):
        refused(tmp_path / f"{name}.txt.gz", rf"^{name}\.txt\.gz is cut off or damaged .*; copy it")
    refused(tmp_path / "a.parquet", r"^a\.parquet cannot be read as parquet .*; write it again")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.txt").chmod(0)
    refused(tmp_path / "a.txt", r"^a\.txt cannot be read \(Permission denied\)")


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
def test_broken_rows_are_named_with_their_line(tmp_path, name, content, message):
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
def test_what_hides_all_that_follows_is_never_left_out(tmp_path, content):
    """A quote that nothing closes, and names of columns that cannot be read."""
    (tmp_path / "a.csv").write_text(content)
    refused(tmp_path / "a.csv", "is not valid csv", text_column="text", skip_bad_rows=True)


def test_a_line_of_names_may_hold_a_long_one(tmp_path):
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


def test_a_later_file_without_the_column_is_an_error_not_an_empty_file(tmp_path):
    for number in range(40):
        row = {"body": "b"} if number == 39 else {"text": "a"}
        (tmp_path / f"{number:02}.jsonl").write_text(json.dumps(row) + "\n")
    refused(tmp_path, r'^39\.jsonl has no column "text" among body')


def test_options_that_are_not_known_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    refused(tmp_path / "a.txt", "not one of auto, file", document="page")
    refused(tmp_path / "a.txt", "not one of auto, sentence", line="word")
    refused(tmp_path / "a.txt", "is not a language code", language="Klingon")


def test_a_data_set_folder_is_read_without_a_network(tmp_path):
    (tmp_path / "set").mkdir()
    shutil.move(write_rows(tmp_path, "jsonl"), tmp_path / "set" / "train.jsonl")
    corpus = Corpus([f"hub:{tmp_path / 'set'}"], group_column="who")
    documents = list(corpus.documents())
    assert [document.lines for document in documents] == [
        ["First text.", "Its second line."],
        ['Third, with "quotes"'],
    ]
    assert [document.source for document in documents] == ["set:1", "set:3"]
    assert [document.group for document in documents] == ["a", "a"]
    assert (corpus.total_bytes, corpus.bad_rows.count, corpus.digest()) == (0, 1, corpus.digest())
    refused(f"hub:{tmp_path / 'set'}:test", 'hub:set:test has no split "test"; write one of train')
    refused(f"hub:{tmp_path / 'nothing'}", "nothing cannot be opened")
    refused("hub:", "hub: names no data set")


def test_a_data_set_that_breaks_off_is_one_sentence(tmp_path):
    """The second of two shards is damaged."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet"):
        parquet.write_table(pyarrow.table({"text": [f"Row {n} of a data set." for n in range(50)]}), folder / name)
    corpus = Corpus([f"hub:{folder}"])
    assert sum(1 for _ in corpus.documents()) == 100
    shard = bytearray((folder / "train-00001-of-00002.parquet").read_bytes())
    shard[4:400] = bytes(396)
    (folder / "train-00001-of-00002.parquet").write_bytes(shard)
    with pytest.raises(PrepError, match="^hub:set broke off behind row 50 .*same command again"):
        list(corpus.documents())


def hub_set(folder: Path, rows: int = 600) -> Path:
    """A data set of two shards, with a column that is not asked for."""
    folder.mkdir()
    texts = [f"Row {n} of a data set. It has {n % 7} more sentences than the last. So it is." for n in range(rows)]
    for shard, part in enumerate((texts[: rows // 2], texts[rows // 2 :])):
        days = [datetime.date(2020, 1, 1 + n % 28) for n in range(len(part))]
        table = pyarrow.table({"text": part, "day": days, "rest": ["x" * 1000] * len(part)})
        parquet.write_table(table, folder / f"train-0000{shard}-of-00002.parquet")
    return folder


def test_a_data_set_is_read_once_and_later_from_its_copy(tmp_path):
    corpus = Corpus([f"hub:{hub_set(tmp_path / 'set')}"], group_column="day")
    other = Corpus([f"hub:{tmp_path / 'set'}"], group_column="day")
    expected, digest = list(corpus.documents()), corpus.digest()
    [said] = corpus.fetch(tmp_path / "copies")
    assert "hub:set is on this machine now" in said
    [copy] = (tmp_path / "copies").glob("*.gz")
    written = copy.stat().st_mtime_ns
    # Another run finds the copy.
    (tmp_path / "copies" / "unfinished.tmp").write_bytes(b"cut")
    other.fetch(tmp_path / "copies")
    (tmp_path / "copies" / "unfinished.tmp").unlink()
    assert [*(tmp_path / "copies").glob("*.gz")] == [copy] and copy.stat().st_mtime_ns == written
    shutil.rmtree(tmp_path / "set")
    assert list(corpus.documents()) == expected and corpus.digest() == digest
    assert corpus.bytes_read == corpus.total_bytes == copy.stat().st_size
    assert list(other.documents()) == expected


def test_a_damaged_copy_of_a_data_set_is_made_again(tmp_path):
    name = f"hub:{hub_set(tmp_path / 'set')}"
    first, again = Corpus([name]), Corpus([name])
    first.fetch(tmp_path / "copies")
    expected = list(first.documents())
    [copy] = (tmp_path / "copies").glob("*.gz")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    again.fetch(tmp_path / "copies")
    assert copy.read_bytes() == whole and list(again.documents()) == expected


def test_a_data_set_that_was_written_again_is_read_again(tmp_path):
    first = Corpus([f"hub:{hub_set(tmp_path / 'set')}"])
    first.fetch(tmp_path / "copies")
    shutil.rmtree(tmp_path / "set")
    again = Corpus([f"hub:{hub_set(tmp_path / 'set', rows=80)}"])
    again.fetch(tmp_path / "copies")
    assert len(list(first.documents())) == 600 and len(list(again.documents())) == 80


def test_a_preparation_reads_a_data_set_once(tmp_path, monkeypatch):
    import datasets

    read, original = [], datasets.IterableDataset.__iter__

    def counted(self):
        for row in original(self):
            read.append(1)
            yield row

    monkeypatch.setattr(datasets.IterableDataset, "__iter__", counted)
    prep = PrepSettings(corpus=(f"hub:{hub_set(tmp_path / 'set')}",), vocab_size=128, workers=1)
    prepared = prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    assert 600 <= len(read) <= 600 + 200 and not (tmp_path / "out" / ".work").exists()
    # It is found again, and the same as from files.
    prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    files = replace(prep, corpus=(str(tmp_path / "set"),))
    assert prepare(files, ExampleSettings(sequence_length=32), tmp_path / "other").digest == prepared.digest


def test_a_data_set_that_breaks_off_leaves_nothing(tmp_path):
    prep = PrepSettings(corpus=(f"hub:{hub_set(tmp_path / 'set')}",), vocab_size=128, workers=1)
    path = tmp_path / "set" / "train-00001-of-00002.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(400) + whole[404:])
    with pytest.raises(PrepError, match="^hub:set broke off behind row 300 .*; give the same command again.$"):
        prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path.write_bytes(whole)
    prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")


def test_a_saved_data_set_is_read(tmp_path):
    import datasets

    saved = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"a": saved, "b": saved.select([2])}).save_to_disk(tmp_path / "saved")
    assert read(f"hub:{tmp_path / 'saved'}:b") == [['Third, with "quotes"']]


@pytest.mark.slow
def test_the_built_in_corpus_is_paragraphs(monkeypatch):
    from data_prep.text import builtin

    monkeypatch.setattr(builtin, "PACKAGES", ())
    builtin._modules.cache_clear()
    corpus = Corpus(["builtin"])
    assert corpus.rules[0].line == "paragraph" and corpus.files == [("builtin", 0)]
    assert [document.source for document in corpus.documents()] == [name for name, _ in builtin.documents()]
    assert corpus.digest() == Corpus(["builtin"]).digest()
    builtin._modules.cache_clear()


@needs("pmc-rct-text")
def test_articles_with_a_sentence_a_line():
    corpus = Corpus([str(DATA / "pmc-rct-text" / "validation.txt.gz")])
    assert (corpus.rules[0].document, corpus.rules[0].line) == ("blank-line", "sentence")
    documents = list(corpus.documents())
    assert len(documents) == 245
    assert sum(len(document.lines) for document in documents) + 244 == 42378


@needs("english-novels-a")
def test_novels_with_a_paragraph_a_line():
    corpus = Corpus([str(DATA / "english-novels-a" / "validation.txt.gz")])
    assert (corpus.rules[0].document, corpus.rules[0].line) == ("blank-line", "paragraph")
    documents = list(corpus.documents())
    assert len(documents) == 2
    assert sum(len(" ".join(document.lines).split()) for document in documents) == 322414


@needs("nsmc-ko")
def test_reviews_in_rows():
    corpus = Corpus([str(DATA / "nsmc-ko" / "validation.jsonl.gz")], language="ko", group_column="label")
    documents = list(corpus.documents())
    assert (corpus.rules[0].document, corpus.rules[0].text_column) == ("row", "text")
    assert len(documents) + corpus.empty_documents == 5000
    assert {document.group for document in documents} == {"positive", "negative"}


def large(text: str) -> str:
    """The text, repeated until a file of it has rules of its own."""
    return text * (LARGE_FILE // len(text) + 1)


@pytest.mark.slow
def test_each_large_file_has_its_own_rules_and_they_are_said(tmp_path):
    """What is read rightly alone is read alike beside others."""
    words = "the patient was seen again on the next day and the wound was found to be clean"
    files = {
        "chapters.txt": large("\n".join([f"{words}." for _ in range(30)]) + "\n\n"),
        "paragraphs.txt": large(f"{words}. {words.title()}. It was so.\n" * 5 + "\n"),
        "note-1.txt": f"{words}.\n{words}.\n",
        "note-2.txt": f"{words}.\n{words}.\n",
        "rows.jsonl": large(json.dumps({"text": f"{words}. It was so. {words}."}) + "\n"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    together = Corpus([str(tmp_path)])
    names = [name for name, _ in together.files]
    found = {name: (each.document, each.line) for name, each in zip(names, together.rules, strict=True)}
    assert found == {
        "chapters.txt": ("blank-line", "sentence"),
        "paragraphs.txt": ("blank-line", "paragraph"),
        "note-1.txt": ("file", "sentence"),
        "note-2.txt": ("file", "sentence"),
        "rows.jsonl": ("row", "paragraph"),
    }
    said = {line.partition(": ")[0]: line for line in together.introduction()}
    assert len(said) == 4 and any("note-1.txt" in names and "note-2.txt" in names for names in said)
    # The report is kept, and names no folder above the one that was asked for.
    reported = [line.partition(": ")[0] for line in together.rule_sentences()]
    assert "note-1.txt, note-2.txt" in reported and not any("/" in names for names in reported)
    by_file: dict[str, list[list[str]]] = {}
    for document in together.documents():
        by_file.setdefault(document.source.partition(":")[0], []).append((document.lines, document.line))
    for name in ("chapters.txt", "paragraphs.txt", "rows.jsonl"):
        assert by_file[name] == [(each.lines, each.line) for each in Corpus([str(tmp_path / name)]).documents()]


def test_a_validation_corpus_is_read_as_one_of_the_large_files_of_the_training_corpus(tmp_path):
    words = "the patient was seen again on the next day and the wound was found to be clean"
    texts = {"sentences.txt": f"{words}.\n" * 9 + "\n", "paragraphs.txt": f"{words}. It was so. {words}.\n" * 9 + "\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(large(text))
        (tmp_path / f"held-out-{name}").write_text(text)
    training = Corpus([str(tmp_path / name) for name in texts])
    lines = {rules.line for rules in training.rules}
    assert lines == {"sentence", "paragraph"}
    for name, line in (("sentences.txt", "sentence"), ("paragraphs.txt", "paragraph")):
        held_out = Corpus([str(tmp_path / f"held-out-{name}")], training=training.rules)
        assert [(rules.document, rules.line) for rules in held_out.rules] == [("blank-line", line)]


@pytest.mark.parametrize("document", ["auto", "file", "blank-line"])
def test_a_text_without_end_is_cut_into_documents_of_bounded_length(tmp_path, monkeypatch, document):
    monkeypatch.setattr("data_prep.text.corpus.LONGEST_DOCUMENT", 1_000)
    lines = [f"this is sentence {number} of a long file." for number in range(500)]
    (tmp_path / "a.txt").write_text("\n\n" + "\n".join(lines) + "\n")
    corpus = Corpus([str(tmp_path / "a.txt")], document=document)
    found = list(corpus.documents())
    assert [line for each in found for line in each.lines] == lines
    sizes = [sum(map(len, each.lines)) for each in found]
    assert max(sizes) < 1_100 and all(size >= 1_000 for size in sizes[:-1])
    assert corpus.cuts == len([size for size in sizes if size >= 1_000])
    assert found[1].source == f"a.txt:{3 + len(found[0].lines)}" and corpus.empty_documents == 0


@pytest.mark.parametrize("blank", ["\n", ""])
def test_a_long_wrapped_text_is_cut_between_paragraphs_where_there_are_any(tmp_path, monkeypatch, blank):
    monkeypatch.setattr("data_prep.text.corpus.LONGEST_DOCUMENT", 1_000)
    paragraph = "a line that was cut at a margin\nand goes on in the next one.\n" * 5
    (tmp_path / "a.txt").write_text((paragraph + blank) * 20)
    found = list(Corpus([str(tmp_path / "a.txt")], document="file", line="wrapped").documents())
    words = [" ".join(each.lines) for each in found]
    assert " ".join(words).split() == (paragraph * 20).split()
    assert len(found) > 2 and all(text.endswith("one.") for text in words if blank)


@pytest.mark.parametrize("content", ["", "\n"])
def test_a_file_without_rows_beside_a_large_one_is_passed_over(tmp_path, content):
    (tmp_path / "large.jsonl").write_text(large(json.dumps({"text": "It was so. It was not so."}) + "\n"))
    (tmp_path / "small.jsonl").write_text(content)
    (tmp_path / "table.csv").write_text("id,text\n")
    assert {each.source.partition(":")[0] for each in Corpus([str(tmp_path)]).documents()} == {"large.jsonl"}


def test_what_ends_by_itself_is_not_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.corpus.LONGEST_DOCUMENT", 1_000)
    (tmp_path / "a.txt").write_text("word " * 300 + "\n" + "word " * 400 + "\n")
    for document in ("line", "file"):
        corpus = Corpus([str(tmp_path / "a.txt")], document=document)
        assert len(list(corpus.documents())) == 2
        assert corpus.cuts == (document == "file")
