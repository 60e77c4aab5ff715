import gzip
import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.text.corpus import Corpus
from data_prep.text.rules import LARGE_FILE

DATA = Path(__file__).parents[4] / "shared" / "data"
LONG = "It was a long line of many words about nothing at all. " * 6


def needs(name: str):
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"{name} is not on this machine")


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


def test_documents_of_megabytes_are_told_apart(tmp_path, read):
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


def test_a_document_as_asked(tmp_path, read):
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


@pytest.mark.parametrize(
    "document", ["report_{}.pdf", "{}", "Letter {} about a patient who was seen in the clinic today"]
)
def test_a_column_of_names_is_not_the_text_where_another_is(tmp_path, document):
    note = "The patient was seen in the morning, and the wound had closed. She went home on day {}."
    rows = [{"document": document.format(n), "notes": note.format(n), "who": f"nurse {n}"} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = "document" if document.startswith("Letter") else "notes"
    assert Corpus([str(tmp_path / "a.jsonl")]).rules[0].text_column == expected
    # Short texts beside long values that are none.
    shorts = {"text": "chest pain {}", "sentence": "He was seen .", "document": "{}.pdf"}
    longs = ("ab12" * 16, f"/data/{'x' * 70}", f"https://www.example.org/{'x' * 60}")
    for (name, value), other in zip(shorts.items(), longs, strict=True):
        rows = [{name: value.format(n), "other": f"{other}{n}"} for n in range(40)]
        (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert Corpus([str(tmp_path / "c.jsonl")]).rules[0].text_column == name
    # Names alone are all the text that there is.
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"document": f"{n}.pdf", "who": "x"}) + "\n" for n in range(40))
    )
    assert Corpus([str(tmp_path / "b.jsonl")]).rules[0].text_column == "document"


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
def test_lines_are_those_python_reads_whatever_the_encoding(tmp_path_factory, text, encoding, read):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode(encoding))
    with path.open(encoding=encoding) as file:
        expected = [line for line in map(str.strip, file) if line]
    assert read(path, encoding=encoding, document="file") == ([expected] if expected else [])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_characters_and_line_ends_across_the_edges_of_what_is_read_at_once(tmp_path, encoding, read):
    lines = [f"{number} é가𝒳 " + "x" * (number % 7) for number in range(120_000)]
    with (tmp_path / "a.txt").open("w", encoding=encoding, newline="") as file:
        file.write("\r\n".join(lines))
    assert read(tmp_path / "a.txt", encoding=encoding, document="file") == [[line.strip() for line in lines]]


def test_a_byte_order_mark_is_no_text_and_crlf_is_a_line_end(tmp_path, read):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n\r\nthree\rfour".encode())
    assert read(tmp_path / "a.txt", document="blank-line") == [["one", "two"], ["three", "four"]]
    (tmp_path / "a.csv").write_bytes("\ufefftext,id\r\none,1\r\n".encode())
    assert read(tmp_path / "a.csv", text_column="text") == [["one"]]


def test_half_a_surrogate_pair_does_not_reach_the_text(tmp_path, read):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b \\ud83d\\ude00"}\n')
    assert read(tmp_path / "a.jsonl") == [["a \ufffd b 😀"]]
    (tmp_path / "a.txt").write_text("a \\ud83d b")
    assert read(tmp_path / "a.txt", encoding="unicode_escape") == [["a \ufffd b"]]


def test_many_blank_lines_take_no_memory(tmp_path):
    (tmp_path / "a.txt").write_text("one\n" + "\n" * 300_000 + "two\n")
    corpus = Corpus([str(tmp_path / "a.txt")], document="file")
    tracemalloc.start()
    try:
        assert [document.lines for document in corpus.documents()] == [["one", "two"]]
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()


def test_the_digest_is_of_names_and_contents_not_of_places(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("text")
        (tmp_path / folder / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n', mtime=0))
    first, second = (Corpus([str(tmp_path / folder)]) for folder in ("one", "two"))
    assert first.digest() == first.digest() == second.digest()
    (tmp_path / "two" / "a.txt").write_text("Text")
    assert Corpus([str(tmp_path / "two")]).digest() != first.digest()
    (tmp_path / "two" / "a.txt").write_text("text")
    (tmp_path / "two" / "a.txt").rename(tmp_path / "two" / "b.txt")
    assert Corpus([str(tmp_path / "two")]).digest() != first.digest()


@pytest.mark.parametrize("name", ["bad.txt", "bad.txt.gz"])
def test_an_invalid_byte_is_named_with_its_place(tmp_path, name, refused):
    # Behind the first megabyte, after a character that lies across its edge.
    content = b"x" * ((1 << 20) - 1) + "é".encode() + b"\n" + b"caf\xe9 au lait\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    place = content.index(b"\xe9 au")
    refused(tmp_path / name, rf"^{name}:2 is not valid utf-8 at byte {place} \(0xe9\): .*--encoding")


def test_a_character_cut_off_at_the_end_is_named_with_its_place(tmp_path, refused):
    (tmp_path / "a.txt").write_bytes("abc é".encode()[:-1])
    refused(tmp_path / "a.txt", r"a\.txt:1 is not valid utf-8 at byte 4 \(0xc3\)")


def test_encodings_that_do_not_fit(tmp_path, refused):
    (tmp_path / "é.txt").write_text("Ein Ö, ein Á.", encoding="utf-8")
    refused(tmp_path / "é.txt", "is not valid cp1252 .* it may be UTF-8; .*leave --encoding out", encoding="cp1252")
    (tmp_path / "wide.txt").write_text("text", encoding="utf-16")
    (tmp_path / "bare.txt").write_text("text", encoding="utf-16-le")
    (tmp_path / "data.txt").write_bytes(b"PK\x03\x04\x00\x00")
    refused(tmp_path / "wide.txt", r"wide\.txt is utf-16 text, not utf-8: pass --encoding utf-16")
    for encoding, proposed in (("u16", "utf-16-le"), ("UTF_32", "utf-32-le")):
        refused(
            tmp_path / "bare.txt",
            f"not begin with a byte order mark of that kind; pass --encoding {proposed}",
            encoding=encoding,
        )
    refused(tmp_path / "wide.txt", r"wide\.txt is utf-16 text, not utf-32: pass --encoding utf-16", encoding="utf-32")
    (tmp_path / "wider.txt").write_text("text", encoding="utf-32")
    refused(tmp_path / "wider.txt", "is utf-32 text, not utf16: pass --encoding utf-32", encoding="utf16")
    refused(tmp_path / "data.txt", r"data\.txt looks like a binary file \(a zero byte at 4\)")
    refused(tmp_path / "wide.txt", '"utf8x" is not a text encoding; pass --encoding .*utf8', encoding="utf8x")
    refused(tmp_path / "wide.txt", '"rot13" is not a text encoding', encoding="rot13")
    for name, of_windows in (("ANSI", "cp1252"), ("Unicode", "utf-16")):
        refused(tmp_path / "wide.txt", f'"{name}" is not .*; pass --encoding {of_windows}', encoding=name)
    for name in ("base64", "mbcs", "unicode-internal", "hex"):
        with pytest.raises(PrepError, match="is not a text encoding") as refusal:
            Corpus([str(tmp_path / "wide.txt")], encoding=name)
        for proposed in re.split(r" or ", re.search(r"pass --encoding (.*)$", str(refusal.value))[1]):
            "".encode(proposed)
    for code in ("a b-c !!", "abc-z", "A-999999999a"):
        (tmp_path / "code.txt").write_text(code)
        refused(tmp_path / "code.txt", "is not valid punycode .* it may be UTF-8", encoding="punycode")


def test_damaged_files_are_named(tmp_path, refused):
    whole = gzip.compress(os.urandom(50_000).hex().encode())
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-9000])
    (tmp_path / "not.txt.gz").write_text("plain text")
    (tmp_path / "flipped.txt.gz").write_bytes(whole[:-8] + bytes(255 - byte for byte in whole[-8:]))
    (tmp_path / "a.parquet").write_text("not parquet")
    for name in ("cut", "not", "flipped"):
        refused(tmp_path / f"{name}.txt.gz", rf"^{name}\.txt\.gz is cut off or damaged .*; copy it")
    refused(tmp_path / "a.parquet", r"^a\.parquet cannot be read as parquet .*; write it again")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path, refused):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.txt").chmod(0)
    refused(tmp_path / "a.txt", r"^a\.txt cannot be read \(Permission denied\)")


def test_options_that_are_not_known_are_refused(tmp_path, refused):
    (tmp_path / "a.txt").write_text("a")
    refused(tmp_path / "a.txt", "not one of auto, file", document="page")
    refused(tmp_path / "a.txt", "not one of auto, sentence", line="word")
    refused(tmp_path / "a.txt", "is not a language code", language="Klingon")


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


def test_a_row_of_invisible_characters_has_no_text(tmp_path):
    """A row of which a reader sees nothing has no text."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("words", "more", "\u200b \u200d")))
    corpus = Corpus([str(path)])
    assert [document.lines for document in corpus.documents()] == [["words"], ["more"]]
    assert corpus.bad_rows.count == 1
