import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.cells import line_of, lines_of, words_apart
from data_prep.text.corpus import Corpus
from data_prep.vocabulary.wordpiece import bert_normalizer

CONTROLS = "\v\f\x1c\x1d\x1e\x1f\x85"
TEXTS = st.text(st.sampled_from("ab. \t\n\r\u00a0\u2028\u200b\ufeff\u200f中ខ" + CONTROLS))


@given(TEXTS)
def test_words_that_white_space_separates_stay_apart(text):
    """The tokenizer drops white space that is a control character; for Python, which splits at it, it is none."""
    normalizer = bert_normalizer(lowercase=False, strip_accents=False)
    plain = text.replace("\u200b", "").replace("\ufeff", "").replace("\u200f", "")
    seen = normalizer.normalize_str(words_apart(plain)).split()
    assert "".join(seen).replace("中", "") == "".join(plain.split()).replace("中", "")
    assert [word for word in seen if word != "中"] == plain.replace("中", " ").split()
    assert len(words_apart(text, in_place=True)) == len(text)


@given(TEXTS)
def test_lines_hold_what_a_reader_sees(text):
    lines = lines_of(text)
    assert all(line == line_of(line) == line.strip() for line in lines)
    visible = set("ab.中ខ")
    assert [bool(visible & set(line)) for line in lines] == [bool(line) for line in lines]
    assert [char for line in lines for char in line if char in visible] == [char for char in text if char in visible]


@pytest.mark.parametrize("mark", ["", " ", "\u200b", "\ufeff", "\u200f", "\u2060", "\x0c", "\x85"])
def test_documents_end_at_lines_that_look_blank(tmp_path, mark):
    documents = [[f"This is line {line} of document {number}." for line in range(3)] for number in range(40)]
    (tmp_path / "a.txt").write_text(f"\n{mark}\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    assert [document.lines for document in Corpus([tmp_path / "a.txt"]).documents()] == documents
