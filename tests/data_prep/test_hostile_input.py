"""Broken and hostile text: cleaned and counted in the report, or refused in a sentence with its place and a remedy."""

import base64
import gzip
import json
import os
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.prepared import PreparedCorpus
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.text.corpus import Corpus

WORDS = "the heart rate of a patient was measured before and after treatment with the drug".split()
EXAMPLES = ExampleSettings(sequence_length=32)


def sentences(count: int, start: int = 0) -> list[str]:
    """Different sentences of common words."""
    order = [np.random.RandomState(start + number).permutation(len(WORDS)) for number in range(count)]
    return [" ".join(WORDS[place] for place in places) + f" {start + n} ." for n, places in enumerate(order)]


def article(number: int, lines: int = 6) -> str:
    return "\n".join(sentences(lines, 1000 * number))


def articles(count: int = 12) -> str:
    return "\n\n".join(map(article, range(count))) + "\n"


@dataclass
class Case:
    """A corpus, the settings it is read with, and what has to be found in the report, said, or refused."""

    make: Callable[[Path], object]
    settings: dict = field(default_factory=dict)
    numbers: dict = field(default_factory=dict)
    """Of the report: a name in `corpus` or `corpus.checks`, and its value."""
    said: tuple[str, ...] = ()
    """In the warnings or the rules."""
    unsaid: tuple[str, ...] = ()
    """Not in them."""
    refused: tuple[str, ...] = ()
    """In the one sentence of a refusal."""


def text(content: str | bytes, name: str = "notes.txt") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def files(**contents: str | bytes) -> Callable[[Path], None]:
    """Files by name, "__" for the dot of the ending."""

    def make(folder: Path) -> None:
        for name, content in contents.items():
            text(content, name.replace("__", "."))(folder)

    return make


def rows(*values: object) -> Callable[[Path], None]:
    good = [json.dumps({"text": article(n)}) for n in range(12)]
    return text("\n".join([*good, *(v if isinstance(v, str) else json.dumps(v) for v in values)]), "rows.jsonl")


def table(**columns: list) -> Callable[[Path], None]:
    return lambda folder: parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")


def two_columns(folder: Path) -> None:
    columns = [pyarrow.array([article(n) for n in range(12)])] * 2
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=["text", "text"]), folder / "rows.parquet")


def links(folder: Path) -> None:
    text(articles())(folder)
    (folder / "round").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "broken.txt").symlink_to(folder / "gone.txt")


def odd_names(folder: Path) -> None:
    for number, name in enumerate(["with space.txt", "größe.txt", "two\nlines.txt", "\u202etxt.exe.txt"]):
        text(articles(3 + number), name)(folder)


def name_that_is_no_text(folder: Path) -> None:
    text(articles())(folder)
    try:
        file = open(os.fsencode(folder) + b"/latin-\xe9.txt", "wb")
    except OSError:
        pytest.skip("the file system has names of text alone")
    with file:
        file.write(article(50).encode())


def no_folder(folder: Path) -> None:
    text(articles())(folder)
    (folder / "closed").mkdir(mode=0)


def folder_to_list_alone(folder: Path) -> None:
    text(articles())(folder)
    (folder / "closed").mkdir()
    text(articles())(folder / "closed")
    (folder / "closed").chmod(0o444)


def wrapped(number: int) -> str:
    """A paragraph of three sentences, cut at a margin."""
    sentence = " and ".join(sentences(3, 10 * number)).replace(" .", "")
    return textwrap.fill(". ".join(f"It was said of {n} that {sentence}" for n in range(3)) + ".", 60)


WRAPPED = "\n\n".join(map(wrapped, range(12)))


def wrapped_and_rows(folder: Path) -> None:
    for number in range(3):
        text("\n\n".join(wrapped(10 * number + n) for n in range(8)), f"{number}.txt")(folder)
    text("".join(json.dumps({"text": article(n, 40)}) + "\n" for n in range(12)), "rows.jsonl")(folder)


THAI = "\n\n".join(
    "\n".join(["ผู้ป่วยได้รับการรักษาด้วยยา"[n:] + "และติดตามผล" * 3 for n in range(6)]) + f"ก{m}" for m in range(12)
)
SEQUENCE = "".join(np.random.RandomState(4).choice(list("ACDEFGHIKLMNPQRSTVWY"), 500))
CODE = base64.b64encode(np.random.RandomState(5).bytes(3000)).decode().replace("+", "A").replace("/", "B")
TURKISH = "Kadın ağır hastaydı, İki gün sonra iyileşti.\n" * 40
KHMER = "\n\n".join("\n".join("\u200b".join(["ខ្ញុំ", "ទៅ", "ផ្សារ", str(n), str(m)]) for n in range(6)) for m in range(12))
CUT = gzip.compress(os.urandom(60_000).hex().encode())[:-500]

CASES = {
    "an empty file": Case(files(a__txt=article(1), b__txt="", c__txt=article(2)), numbers={"empty_documents": 1}),
    "nothing but empty files": Case(files(a__txt="", b__txt=""), refused=("no bytes at all", "give files with text")),
    "nothing but blank lines": Case(text(" \n\t\n\n"), refused=("there is no text in", "give files")),
    "one huge line": Case(text(" ".join(sentences(3000))), numbers={"documents": 1}),
    "a zero byte at the start": Case(
        text(b"PK\0\0" + articles().encode()), refused=("notes.txt", "binary", "zero byte at 2")
    ),
    "zero bytes far behind": Case(
        text((articles() * 20)[:70_000].encode() + b" a\0b \0 \n"),
        numbers={"control_characters": 2},
    ),
    "control characters": Case(text(articles() + "\x07bell \x1b[0m \x7f\n"), numbers={"control_characters": 3}),
    "cp1252 without saying so": Case(
        text((articles() + "café\n").encode("cp1252")),
        refused=("notes.txt:84", "not valid utf-8", "(0xe9)", "--encoding"),
    ),
    "cp1252": Case(text((articles() + "“café”\n").encode("cp1252")), {"encoding": "cp1252"}, {"control_characters": 0}),
    "cp1252 read as Latin-1": Case(
        text((articles() + "“café”\n").encode("cp1252")),
        {"encoding": "latin-1"},
        {"control_characters": 2},
        ("--encoding cp1252",),
    ),
    "mixed encodings": Case(
        text((articles() + "café\n").encode() + "café\n".encode("latin-1")), refused=("notes.txt:85", "(0xe9)")
    ),
    "UTF-8 saved twice": Case(
        text(articles() + "cafÃ© donâ€™t\n"), numbers={"read_twice": 2}, said=("wrong encoding",)
    ),
    "UTF-16": Case(text(articles().encode("utf-16")), refused=("is utf-16 text", "--encoding utf-16")),
    "UTF-32": Case(text(articles().encode("utf-32")), refused=("is utf-32 text", "--encoding utf-32")),
    "an encoding that is none": Case(
        text(articles()), {"encoding": "undefined"}, refused=('"undefined" is not a text encoding', "--encoding")
    ),
    "an encoding of names": Case(text(articles()), {"encoding": "idna"}, refused=('"idna" is not a text encoding',)),
    "an encoding for parquet": Case(
        table(text=[article(n) for n in range(12)]),
        {"encoding": "cp1252"},
        refused=("--encoding cp1252 has nothing to act on", "rows.parquet"),
    ),
    "csv of Excel, which says its delimiter": Case(
        text("sep=|\nid|text\n" + "".join(f'{n}|"{article(n)}, |"\n' for n in range(12)), "rows.csv"),
        numbers={"documents": 12},
    ),
    "csv with tabs": Case(
        text("id\ttext\n" + "".join(f'{n}\t"{article(n)}, ; "\n' for n in range(12)), "rows.csv"),
        numbers={"documents": 12},
    ),
    "csv with pipes": Case(
        text('"a;b"|text\n' + "".join(f'{n}|"{article(n)}, ; "\n' for n in range(12)), "rows.csv"),
        numbers={"documents": 12},
    ),
    "csv below blank lines": Case(
        text("\n \nid,text\n" + "".join(f'{n},"{article(n)}"\n' for n in range(12)) + "1,2,3\n", "rows.csv"),
        refused=(f"rows.csv:{4 + 12 * 6} has 3 fields",),
    ),
    "csv with a space before the quote": Case(
        text("id, text\n" + "".join(f'{n}, "{article(n)}, so"\n' for n in range(12)), "rows.csv"),
        numbers={"documents": 12},
        said=('column "text"',),
    ),
    "UTF-16, said so": Case(text(articles().encode("utf-16")), {"encoding": "utf-16"}, {"documents": 12}),
    "a byte order mark": Case(text(b"\xef\xbb\xbf" + articles().encode()), numbers={"documents": 12}),
    "CRLF": Case(text(articles().replace("\n", "\r\n")), numbers={"documents": 12}),
    "CR": Case(text(articles().replace("\n", "\r")), numbers={"documents": 12}),
    "emoji": Case(text(articles() + "\n😀 👩‍👩‍👧 🇩🇪\n"), numbers={"documents": 13, "unreadable_characters": 0}),
    "half a surrogate pair": Case(
        rows('{"text": "half \\ud83d a pair"}'), numbers={"unreadable_characters": 1}, said=("U+FFFD",)
    ),
    "half a surrogate pair in the name of a column": Case(
        text("\n".join(json.dumps({"\ud83d": article(n)}) for n in range(12)), "rows.jsonl"),
        numbers={"documents": 12},
        said=('column "\ufffd"',),
    ),
    "half a surrogate pair in the name of a column, asked for another": Case(
        text(json.dumps({"\ud83d": article(1)}), "rows.jsonl"),
        {"text_column": "body"},
        refused=('no column "body" among \ufffd',),
    ),
    "right to left": Case(text(articles() + "\nقيس معدل ضربات القلب.\nנמדד קצב הלב.\n"), numbers={"documents": 13}),
    "documents of one word": Case(
        text("\n".join(f"{WORDS[n % 15]}{n % 7}{n}" for n in range(5000))),
        {"document": "line"},
        {"documents": 5000},
        ("No example carries a next-sentence label",),
    ),
    "one document": Case(
        text("\n".join(sentences(4000))),
        numbers={"documents": 1},
        said=("No example carries a next-sentence label",),
    ),
    "everything twice": Case(
        text(articles() + "\n" + articles()), numbers={"duplicates": 12}, said=("50% of the documents were exact",)
    ),
    "everything the same": Case(
        text("\n\n".join([article(1, 60)] * 50)), numbers={"duplicates": 49}, said=("98% of the documents",)
    ),
    "one line without an end mark": Case(
        text(" ".join(WORDS * 400)),
        refused=("notes.txt:1 is all there is, and one sentence of", "a blank line between its documents"),
        unsaid=("give more text",),
    ),
    "a gz file that is cut off": Case(
        text(CUT, "notes.txt.gz"), refused=("notes.txt.gz is cut off or damaged", "compress it again")
    ),
    "parquet with nulls": Case(
        table(text=[article(n) for n in range(12)] + [None], id=[1] * 13),
        numbers={"empty_documents": 0, "bad_rows": 1, "rows": 13},
        said=("1 of 13 rows hold no text", "rows.parquet:13 has nothing in the column"),
    ),
    "one null among two hundred rows": Case(
        table(text=[article(n) for n in range(200)] + [None]),
        numbers={"bad_rows": 1, "rows": 201},
        unsaid=("hold no text",),
    ),
    "most rows without the column": Case(
        rows(*[{"body": "x"}] * 13),
        refused=("rows.jsonl: 13 of its 25 rows hold no text", "rows.jsonl:13 has nothing", "--skip-bad-rows"),
    ),
    "most rows without the column, skipped": Case(
        rows(*[{"body": "x"}] * 13, {"text": None}),
        {"skip_bad_rows": True},
        {"bad_rows": 14, "rows": 26, "documents": 12},
        ("14 of 26 rows hold no text",),
    ),
    "half of the rows without the column": Case(
        rows(*[{"body": "x"}] * 12), numbers={"bad_rows": 12, "documents": 12}, said=("12 of 24 rows",)
    ),
    "rows that cannot be read, skipped": Case(
        rows('{"text": "a', '["text"]', {"text": 5}, {"text": [1]}, "", {"text": ""}),
        {"skip_bad_rows": True},
        {"bad_rows": 5, "rows": 17, "empty_documents": 0, "documents": 12},
        ("rows.jsonl:13 is not valid JSON",),
    ),
    "csv with too few fields, skipped": Case(
        text("id,text\n" + "".join(f'{n},"{article(n)}"\n' for n in range(12)) + "13\n", "rows.csv"),
        {"skip_bad_rows": True},
        {"bad_rows": 1, "rows": 13},
        ("has 1 fields where the first line has 2",),
    ),
    "csv with an empty column of a usual name": Case(
        text("id,text,body\n" + "".join(f'{n},,"{article(n)}"\n' for n in range(12)) + "13,one,two\n", "rows.csv"),
        refused=("rows.csv: 12 of its 13 rows hold no text", "--text-column"),
    ),
    "columns of plain text": Case(
        text(articles()),
        {"group_column": "who"},
        refused=("--group-column who has nothing to act on: notes.txt has no",),
    ),
    "a text column of plain text": Case(
        text(articles()), {"text_column": "who"}, refused=("--text-column who has nothing to act on",)
    ),
    "documents of rows by lines": Case(
        rows(), {"document": "line"}, refused=("--document line is for .txt files and rows.jsonl is none",)
    ),
    "bad rows of plain text": Case(
        text(articles()), {"skip_bad_rows": True}, refused=("--skip-bad-rows has nothing to act on",)
    ),
    "csv with two columns of one name": Case(
        text("text,id,text\n" + "".join(f'a,{n},"{article(n)}"\n' for n in range(12)), "rows.csv"),
        refused=("rows.csv:1 has two columns of the same name (columns 1 and 3): rename one",),
    ),
    "csv with two columns without a name": Case(
        text("text,,\n" + "".join(f'"{article(n)}",{n},\n' for n in range(12)), "rows.csv"), numbers={"documents": 12}
    ),
    "jsonl with a name twice": Case(
        rows('{"text": "a b", "text": "c d"}'), refused=("rows.jsonl:13 has two columns of the same name (columns 1",)
    ),
    "jsonl with a nameless name twice": Case(rows('{"": 1, "": 2, "text": "a"}'), numbers={"documents": 13}),
    "parquet with two columns of one name": Case(two_columns, refused=("rows.parquet has two columns of the same",)),
    "parquet with nested columns": Case(
        table(text=[{"body": article(n)} for n in range(12)]),
        refused=("rows.parquet has no column that holds text alone", "text, which hold an object"),
    ),
    "parquet with a nested column beside": Case(
        table(parts=[[{"a": 1}]] * 12, body=[article(n) for n in range(12)]),
        numbers={"documents": 12},
        said=('column "body"',),
    ),
    "csv with quotes and line breaks": Case(
        text("id,text\n" + "".join(f'{n},"{article(n)} ""so, said"""\n' for n in range(12)), "rows.csv"),
        numbers={"documents": 12},
    ),
    "jsonl with a broken line": Case(
        rows('{"text": "a'), refused=("rows.jsonl:13 is not valid JSON", "every line has to be one object")
    ),
    "jsonl with NaN": Case(rows('{"text": NaN}'), refused=("rows.jsonl:13 has NaN in the column", "--text-column")),
    "jsonl with a number for the text": Case(
        rows({"text": 5}), refused=("rows.jsonl:13 has a number in the column", "--text-column")
    ),
    "jsonl with a list for the text": Case(
        rows({"text": ["secret"]}), refused=("rows.jsonl:13 has a list in the column",)
    ),
    "jsonl with a huge number": Case(
        rows('{"text": 1' + "0" * 5000 + "}"), refused=("rows.jsonl:13 is not valid JSON",)
    ),
    "jsonl nested without end": Case(rows('{"text": ' + "[" * 200_000), refused=("rows.jsonl:13 is not valid JSON",)),
    "links round in a circle": Case(links, numbers={"ignored_files": 3, "documents": 12}, said=("Left out", "round")),
    "names with spaces and worse": Case(odd_names, numbers={"documents": 18}),
    "a name that is no text": Case(name_that_is_no_text, numbers={"documents": 13}),
    "a folder without permission": Case(no_folder, refused=("the folder", "closed cannot be read (Permission denied)")),
    "a folder without the permission to enter it": Case(
        folder_to_list_alone, refused=("the folder", "closed cannot be read (Permission denied)")
    ),
    "pictures among the text": Case(
        files(a__txt=articles(), b__png=b"\x89PNG", c__docx=b"PK"),
        numbers={"ignored_files": 2},
        said=("Left out", "b.png, c.docx"),
    ),
    "a picture named text": Case(
        files(a__txt=articles(), b__txt=b"\x89PNG\r\n\0\0"), refused=("b.txt looks like a binary file",)
    ),
    "names of special tokens": Case(
        text(articles() + "\nthe [MASK] and [SEP] and [CLS]\n"), numbers={"special_tokens_as_text": 3}
    ),
    "wrapped lines": Case(
        text(WRAPPED), {"document": "blank-line"}, {"documents": 12}, ("Lines of text files are cut at a margin",)
    ),
    "wrapped letters beside rows of sentences": Case(
        wrapped_and_rows,
        numbers={"documents": 15},
        said=("blank lines stand between paragraphs", "Lines of text files are"),
    ),
    "a row where the names of columns should be": Case(
        text('"Mrs Meier, born in 1961, presented with severe pain in the back",1\nanother text,2\n', "rows.csv"),
        refused=("rows.csv:1 holds texts where the names of columns should be",),
    ),
    "boilerplate in every document": Case(
        text("\n\n".join(f"Printed by the hospital of the town .\n{article(n)}" for n in range(12))),
        numbers={"repeated_lines": 1},
        said=("1 lines stand in more than half of the documents",),
    ),
    "HTML": Case(
        text("\n\n".join(f"<p>{article(n)}</p>" for n in range(12))),
        numbers={"documents_with_tags": 12},
        said=("100% of the documents hold HTML",),
    ),
    "sequences of letters": Case(
        text(articles() + "".join(f"\n\n{SEQUENCE[n:]}\n{article(20 + n)}" for n in range(5))),
        numbers={"long_words": 5, "long_word_characters": 5 * 500 - 10},
        said=("5 words have more than 100 characters", "one [UNK]"),
        unsaid=("a larger --vocab-size",),
    ),
    "base64": Case(
        text(articles() + "\n" + "\n".join(CODE[n : n + 76] for n in range(0, 2000, 76))),
        numbers={"long_words": 0},
        said=("of the text stands in runs of 40 characters",),
    ),
    "links": Case(
        text(articles() + "\n" + "\n".join(f"https://a.org/{CODE[n : n + 60]}" for n in range(0, 1200, 60))),
        unsaid=("stands in runs",),
    ),
    "letters of private use": Case(
        text(articles() + "\n\uf0b7 a point \ue000 \U000f0001\U00100002\n\uf900 \ufe00\n"),
        numbers={"private_characters": 4},
        said=("4 characters are of private use",),
    ),
    "word breaks": Case(
        text(KHMER), {"language": "km", "document": "blank-line"}, {"documents": 12}, unsaid=("written without spaces",)
    ),
    "joiners": Case(
        text(articles() + "\n" + "می‌خواهم بروم\n" * 30), numbers={"joiners": 30}, said=("30 characters join or part",)
    ),
    "Turkish": Case(
        text(articles() + "\n" + TURKISH), numbers={"turkish_letters": 160}, said=("as in Turkish and Azeri",)
    ),
    "Turkish with its capitals": Case(
        text(articles() + "\n" + TURKISH),
        {"lowercase": False},
        {"turkish_letters": 160},
        unsaid=("as in Turkish and Azeri",),
    ),
    "two forms of accents": Case(
        text(articles() + "\ncafé cre\u0301me\n" + "cafe\u0301 cre\u0301me\n" * 3),
        numbers={"composed_lines": 1, "decomposed_lines": 4},
        said=("the same word is learned twice",),
    ),
    "accents of one form and a script": Case(
        text(articles() + "\n" + "café crème 한국어\n" * 40 + "देवनागरी क़\n" * 40), unsaid=("learned twice",)
    ),
    "a joiner in a picture": Case(text(articles() + "\n👩‍👩‍👧\n"), numbers={"joiners": 2}, unsaid=("join or part",)),
    "a language without spaces": Case(text(THAI), {"language": "th"}, said=("written without spaces",)),
}


def prepared(folder: Path, out: Path, settings: dict) -> PreparedCorpus:
    prep = PrepSettings(corpus=(str(folder),), **{"vocab_size": "auto", **settings})
    with ThreadPoolExecutor(1) as executor:
        return prepare(prep, EXAMPLES, out, executor=executor)


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_counted_or_refused(name, tmp_path, capsys, request):
    case = CASES[name]
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    case.make(folder)
    # So that it can be removed.
    request.addfinalizer(lambda: [path.chmod(0o700) for path in folder.glob("closed")])
    if case.make in (no_folder, folder_to_list_alone) and os.geteuid() == 0:
        pytest.skip("root may read everything")
    if case.refused:
        with pytest.raises(PrepError) as error:
            prepared(folder, out, case.settings)
        assert "\n" not in str(error.value) and all(words in str(error.value) for words in case.refused), error.value
        assert not any(words in str(error.value) for words in case.unsaid), error.value
        assert not out.exists()
        return
    found = prepared(folder, out, case.settings)
    report = json.loads((out / "prep_report.json").read_text())
    facts = report["corpus"] | report["corpus"]["checks"]
    assert {name: facts[name] for name in case.numbers} == case.numbers
    said = "\n".join([capsys.readouterr().out, *report["warnings"]])
    assert all(words in said for words in case.said) and not any(words in said for words in case.unsaid), said
    assert int(sum(shard.ids.size for shard in found.train)) == report["train"]["tokens"] > 0


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    text(articles())(tmp_path / "in")
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9"))
    with pytest.raises(PrepError, match="is not UTF-8 text: give another --out"):
        prepared(tmp_path / "in", out, {})
    assert not out.exists()


def test_the_names_of_special_tokens_are_text(tmp_path):
    (tmp_path / "in").mkdir()
    CASES["names of special tokens"].make(tmp_path / "in")
    found = prepared(tmp_path / "in", tmp_path / "out", {})
    special = {found.tokenizer.cls_id, found.tokenizer.sep_id, found.tokenizer.mask_id, 0}
    assert not any(special & set(np.unique(shard.ids)) for shard in [*found.train, *found.validation])


def test_word_breaks_of_khmer_are_spaces_and_those_within_english_words_go(tmp_path):
    lines = ["ខ្ញុំ\u200bទៅ\u200b\u200bផ្សារ\u200b", "hy\u200bphen"]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "\n".join(lines)}) + "\n")
    for document in Corpus([str(tmp_path)]).documents():
        assert document.lines == ["ខ្ញុំ ទៅ ផ្សារ", "hy\u200bphen"]


def test_wrapped_lines_become_paragraphs(tmp_path):
    (tmp_path / "notes.txt").write_text(WRAPPED)
    documents = list(Corpus([str(tmp_path)], document="blank-line").documents())
    assert [document.lines for document in documents] == [[block.replace("\n", " ")] for block in WRAPPED.split("\n\n")]
    starts = np.cumsum([1, *(block.count("\n") + 2 for block in WRAPPED.split("\n\n"))])
    assert [document.source for document in documents] == [f"notes.txt:{start}" for start in starts[:-1]]
    apart = list(Corpus([str(tmp_path)], document="blank-line", line="sentence").documents())
    assert [document.lines for document in apart] == [block.split("\n") for block in WRAPPED.split("\n\n")]


@pytest.mark.parametrize("change", ["appended", "overwritten", "removed"])
@pytest.mark.parametrize("name", ["notes.txt", "rows.parquet"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, name, change):
    (text(articles()) if name.endswith("txt") else table(text=[article(n) for n in range(300)]))(tmp_path)
    path = tmp_path / name
    corpus = Corpus([str(tmp_path)])
    documents = corpus.documents()
    next(documents)
    if change == "removed":
        path.unlink()
        refusal = f"^{path} cannot be read"
    else:
        with open(path, "ab" if change == "appended" else "r+b") as file:
            file.write(b"more\n")
        os.utime(path, ns=(0, 1))
        refusal = rf"^{path} has changed since it was first read: give the same command again"
    with pytest.raises(PrepError, match=refusal):
        list(documents)
        list(corpus.documents())
