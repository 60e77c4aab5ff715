"""`python -m finetune.search`: the nearest texts of a file, against all cosines."""

import json
import re

import numpy as np
import pytest

from finetune import search
from finetune.inputs import input_sources
from finetune.rows import BadRows
from finetune.search import SearchSettings, main, nearest
from finetune.vectors.cosines import RandomCosine
from finetune.vectors.embedder import Embedder

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = [f"the heart rate {n} " + "of the patient " * (n % 5) for n in range(30)] + ["the mask", "the  mask", "7 8"]
QUERIES = ("heart rate 7", "the mask")


@pytest.fixture
def file(write_rows):
    return write_rows([{"text": text, "n": n} for n, text in enumerate(TEXTS)], "texts.jsonl")


@pytest.mark.parametrize("at_once", [1, 7, 1024])
def test_the_nearest_are_those_of_all_cosines(encoder, file, monkeypatch, at_once):
    monkeypatch.setattr(search, "ROWS_AT_ONCE", at_once)
    embedder = Embedder(encoder, normalize=True)
    settings = SearchSettings(QUERIES, file, str(encoder), nearest=5)
    random = RandomCosine()
    found = nearest(settings, input_sources(settings), embedder, embedder.embed(QUERIES), BadRows(False), random)
    assert random.count == len(TEXTS)
    cosines = embedder.embed(QUERIES) @ embedder.embed(TEXTS).T
    for of_query, row in zip(found, cosines, strict=True):
        best = np.argsort(-np.round(row, 5), kind="stable")[:5]
        assert [each.place for each in of_query] == [f"texts.jsonl:{1 + n}" for n in best]
        np.testing.assert_allclose([each.cosine for each in of_query], row[best], atol=1e-5)
    # Of two equal texts the first one comes first.
    assert [each.text for each in found[1][:2]] == ["the mask", "the  mask"]


def test_it_prints_cosines_places_and_texts_or_no_texts(encoder, file, capsys):
    given = [f"--model={encoder}", f"--texts={file}", "--nearest=2", "--device=cpu"]
    assert main(["the mask", *given]) == 0
    printed = capsys.readouterr()
    assert printed.out == " 1.000  texts.jsonl:31  the mask\n 1.000  texts.jsonl:32  the mask\n"
    assert "Two of these texts at random have a cosine of " in printed.err
    assert main(["the mask", "7 8", *given, "--show-text=no"]) == 0
    printed = capsys.readouterr().out
    assert "mask" not in printed and len(re.findall(r"texts.jsonl:\d+\n", printed)) == 4


def test_nothing_of_a_file_is_shown_where_that_is_forbidden(encoder, write_rows, tmp_path, capsys):
    """Not even the name of a column, which may be a row of a file without a header; so no such name is guessed."""
    unnamed = tmp_path / "unnamed.csv"
    unnamed.write_text("7,zorblatt fell\n8,zorblatt is well\n")
    unusual = write_rows([{"zorblatt": "the heart", "n": 1}, {"zorblatt": "the rate", "n": 2}], "unusual.jsonl")
    for texts in (unnamed, unusual):
        given = ["heart", f"--model={encoder}", f"--texts={texts}", "--device=cpu"]
        assert main([*given, "--show-text=no"]) == 2
        printed = capsys.readouterr()
        assert not printed.out and "zorblatt" not in printed.err and "--text-column" in printed.err
    assert main([*given, "--text-column=zorblatt", "--show-text=no"]) == 0
    assert "unusual.jsonl:1" in capsys.readouterr().out
    assert main(given) == 0


def test_an_encoder_of_another_family_is_searched_with(other_encoder, write_rows, capsys):
    rows = [{"text": "number 7"}, {"text": "the heart rate"}]
    given = [f"--model={other_encoder('distilbert')}", f"--texts={write_rows(rows)}", "--nearest=1", "--device=cpu"]
    assert main(["the heart  rate", *given]) == 0
    assert capsys.readouterr().out == " 1.000  train.jsonl:2  the heart rate\n"


def test_texts_that_are_not_read_to_their_end_are_counted(encoder, write_rows, capsys):
    rows = [{"text": "the heart " * count} for count in (1, 60, 90)]
    given = [f"--model={encoder}", f"--texts={write_rows(rows)}", "--device=cpu"]
    assert main(["heart", "rate " * 70, *given]) == 0
    said = "1 text to look for and 2 texts of the file: longer than 48 tokens (their beginning was read)\n"
    random = "Two of these texts at random have a cosine of "
    assert capsys.readouterr().err.startswith(said + random)
    assert main(["heart", *given]) == 0
    assert capsys.readouterr().err.startswith(said.partition(" and ")[2] + random)
    assert main(["heart", *given[:1], f"--texts={write_rows(rows[:1], 'short.jsonl')}", "--device=cpu"]) == 0
    assert not capsys.readouterr().err


def test_half_a_character_in_a_query_is_one_that_is_not_known(encoder, file, capsys):
    given = [f"--model={encoder}", f"--texts={file}", "--nearest=3", "--device=cpu"]
    found = []
    for query in ("heart \udcff rate", "heart \ufffd rate"):
        assert main([query, "7 8", *given]) == 0
        found.append(capsys.readouterr().out.split("\n", 2)[2])
    assert found[0] == found[1]


def test_rows_without_a_text_stop_it_or_are_passed_over(encoder, write_rows, capsys):
    texts = write_rows([{"text": " "}, {"text": "the heart"}], "t.jsonl")
    assert main(["heart", f"--model={encoder}", f"--texts={texts}"]) == 2
    assert 't.jsonl:1 has an empty "text": mend the row, or pass over such rows' in capsys.readouterr().err
    assert main(["heart", f"--model={encoder}", f"--texts={texts}", "--skip-bad-rows", "--device=cpu"]) == 0
    printed = capsys.readouterr()
    assert "t.jsonl:2  the heart" in printed.out and "1 rows without a usable text" in printed.err
    empty = write_rows([{"text": ""}], "e.jsonl")
    assert main(["heart", f"--model={encoder}", f"--texts={empty}", "--skip-bad-rows"]) == 2
    assert "has no usable row" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "sentence"), [
    (["--texts=x.txt"], "nothing to look for was given"),
    (["--texts=x.txt", "--text-column", "text", "heart"], "took what is to be looked for: put that before --text-col"),
    (["heart", __file__, "--texts=x.txt"], "is a file, and would be looked for: give one file with --texts"),
    (["heart", " ", "--texts=x.txt"], "one of the texts to look for is empty"),
    (["heart"], "no file to look in was given: name one with --texts"),
    (["heart", "--texts=x.txt", "--nearest=0"], "--nearest 0 is less than 1"),
    (["heart", "--texts=nowhere.txt"], "nowhere.txt does not exist"),
    (["heart", "--texts=builtin"], "builtin has labels of its own: give a file of texts"),
    (["heart", "--texts=x.txt", "--text-column", "a", "b"], "--text-column names two columns"),
])  # fmt: skip
def test_what_cannot_be_asked_is_said(encoder, given, sentence, capsys):
    assert main([*given, f"--model={encoder}"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_line_of_the_screen_is_one_line():
    assert search._one_line("a\tb\n\x1b[31mc\u2028d " + json.dumps("x" * 300)).startswith('a b [31mc d "xxx')
    assert len(search._one_line("x" * 300)) == 200
