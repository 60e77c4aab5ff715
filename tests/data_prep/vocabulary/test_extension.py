"""Entries added to a vocabulary: they are what shortens the text most, and nothing else changes."""

import json
import random
import tracemalloc
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.run import main
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.vocabulary.extension import _best, cut, new_entries, words_in_pieces
from data_prep.vocabulary.wordpiece import WordPieceTokenizer

words = st.text("abcdehrst", min_size=1, max_size=9)
texts = st.lists(st.lists(words, min_size=1, max_size=12).map(" ".join), min_size=1, max_size=12)


def tokens(tokenizer, lines) -> int:
    return sum(map(len, tokenizer.encode(lines)))


@given(texts)
def test_words_are_cut_as_the_tokenizer_cuts_them(small_tokenizer, lines):
    known = set(small_tokenizer.vocabulary)
    expected = Counter()
    for line in lines:
        for word in line.split():
            pieces = [small_tokenizer.vocabulary[i] for i in small_tokenizer.encode([word])[0]]
            assert cut(word, known) == pieces
            if len(pieces) > 1:
                expected[word] += 1
    assert words_in_pieces(small_tokenizer, lines) == expected


def test_long_lines_take_no_more_memory_than_short_ones(small_tokenizer, monkeypatch):
    monkeypatch.setattr("data_prep.vocabulary.extension._CHUNKS_AT_ONCE", 1)
    lines = ["heartbeat xyz " * 3_500] * 40
    tracemalloc.start()
    try:
        found = words_in_pieces(small_tokenizer, lines)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert set(found.values()) == {3_500 * 40}


def test_continuations_and_words_that_cannot_be_spelled(small_tokenizer):
    known = set(small_tokenizer.vocabulary)
    assert cut("##hearts", known) == ["##h", "##e", "##a", "##r", "##t", "##s"]
    assert cut("heärt", known) == []


@given(texts, st.integers(1, 12))
def test_what_is_added_is_new_and_shortens_the_text(small_tokenizer, lines, count):
    found = new_entries(small_tokenizer, lambda: lines, count)
    assert len(found) == len(set(found)) <= count and not set(found) & set(small_tokenizer.vocabulary)
    longer = small_tokenizer.extended(found)
    assert longer.begins_with(small_tokenizer) and small_tokenizer.begins_with(longer) == (not found)
    before, after = tokens(small_tokenizer, lines), tokens(longer, lines)
    assert after < before if found else after == before


@settings(max_examples=60)
@given(st.lists(st.lists(words, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=5))
def test_the_only_entry_added_is_the_best_there_is(small_tokenizer, lines):
    """Brute force: of all runs of pieces within words, none saves more of them, all but one wherever it stands."""
    known, savings = set(small_tokenizer.vocabulary), Counter()
    for word in " ".join(lines).split():
        pieces = cut(word, known)
        for start, end in combinations(range(len(pieces) + 1), 2):
            if 2 <= end - start <= 16:
                run = pieces[start] + "".join(piece.removeprefix("##") for piece in pieces[start + 1 : end])
                savings[run] += end - start - 1
    best, found = max(savings.values(), default=0), new_entries(small_tokenizer, lambda: lines, 1)
    assert [savings[run] for run in found] == [best] * (best >= 2)


def test_frequent_letters_that_are_lacking_come_first(small_tokenizer):
    lines = ["5 % of ñandú", "dose ± 3 %"] * 30 + ["rare ß"]
    found = new_entries(small_tokenizer, lambda: lines, 40)
    assert found[0] == "%"
    # A sign is a word of its own, a letter goes on within one.
    letters = {entry for entry in found if len(entry.removeprefix("##")) == 1}
    assert {"%", "ñ", "##ñ", "ú", "##ú", "±"} <= letters and "##%" not in letters and "ß" not in letters
    extended = small_tokenizer.extended(found)
    assert extended.unk_id not in {i for ids in extended.encode(lines[:-1]) for i in ids}


def test_of_a_letter_only_the_form_that_is_lacking_is_added(small_tokenizer):
    """Vocabularies made from others often have one of the two."""
    half = small_tokenizer.extended(["##ñ", "ß"])
    found = new_entries(half, lambda: ["ñandú groß ß"] * 30, 40)
    letters = {entry for entry in found if len(entry.removeprefix("##")) == 1}
    assert letters == {"ñ", "##ß", "ú", "##ú"}
    extended = half.extended(found)
    assert len(set(extended.vocabulary)) == extended.vocab_size
    assert extended.unk_id not in extended.encode(["ñandú groß ß"])[0]


def test_a_preparation_adds_them_behind_the_given_vocabulary(tmp_path, small_tokenizer):
    small_tokenizer.save(tmp_path / "bert", 48)
    names = ["hypertension", "thrombosis", "dialysis"]
    lines = [f"the patient was stable {names[n % 3]} {n}\nthe rate of the heart {n}" for n in range(60)]
    lines += ["unique" + "x" * 5 + " the heart"] * 1
    (tmp_path / "notes.txt").write_text("\n\n".join(lines))
    given = [f"--corpus={tmp_path}/notes.txt", f"--tokenizer={tmp_path}/bert", "--sequence-length=32", "--workers=1"]
    assert main([*given, "--extend-vocab=3", f"--out={tmp_path}/out"]) == 0
    found = WordPieceTokenizer.load(tmp_path / "out" / "tokenizer")
    assert found.begins_with(small_tokenizer) and sorted(found.vocabulary[small_tokenizer.vocab_size :]) == sorted(
        names
    )


def test_entries_of_one_document_alone_are_not_added_where_more_are_asked_for(tmp_path, small_tokenizer):
    small_tokenizer.save(tmp_path / "bert", 48)
    lines = [f"the patient was stable with dialysis {n}\nthe rate of the heart {n}" for n in range(30)]
    lines[3] += "\n" + "\n".join(f"quixbert {n} was stable" for n in range(99))
    (tmp_path / "notes.txt").write_text("\n\n".join(lines))
    given = [f"--corpus={tmp_path}/notes.txt", f"--tokenizer={tmp_path}/bert", "--sequence-length=32", "--workers=1"]
    added = {}
    for least in (1, 5):
        out = tmp_path / f"out{least}"
        assert main([*given, "--extend-vocab=2", f"--min-documents={least}", f"--out={out}"]) == 0
        added[least] = WordPieceTokenizer.load(out / "tokenizer").vocabulary[small_tokenizer.vocab_size :]
    assert "quixbert" in added[1] and "quixbert" not in added[5] and "dialysis" in added[5]


@pytest.mark.parametrize("option", ["extend_vocab", "vocab_size"])
def test_names_that_may_not_stay_take_no_places(tmp_path, small_tokenizer, option):
    """Each of 150 letters has a long name of its own many times, which shortens it most."""
    rng = random.Random(5)
    made_up = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(5)) for _ in range(350)]
    names, words = made_up[:150], made_up[150:]
    letters = [" ".join([f"{name} was seen ."] * 30 + rng.sample(words, 30)) for name in names]
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps({"text": letter}) + "\n" for letter in letters))
    given = {"extend_vocab": 150, "tokenizer": str(tmp_path / "given")} if option == "extend_vocab" else {option: 320}
    small_tokenizer.save(tmp_path / "given", 48)
    (tmp_path / "held.txt").write_text("it was seen .\nso was this .\n" * 40)
    given |= {"corpus": (str(tmp_path / "letters.jsonl"),), "validation_corpus": (str(tmp_path / "held.txt"),)}
    prep = PrepSettings(min_documents=5, workers=1, **given)
    found = prepare(prep, ExampleSettings(sequence_length=48), tmp_path / "out").tokenizer.vocabulary
    assert len(found) == (len(small_tokenizer.vocabulary) + 150 if option == "extend_vocab" else 320)
    assert not set(names) & set(found)
    assert len(set(words) & set(found)) > 50


def test_too_many_are_refused_with_the_number_there_is(tmp_path, small_tokenizer, capsys):
    small_tokenizer.save(tmp_path / "bert", 48)
    (tmp_path / "notes.txt").write_text("\n\n".join(f"the heart was stable {n}\nthe rate {n}" for n in range(40)))
    given = [f"--corpus={tmp_path}/notes.txt", f"--tokenizer={tmp_path}/bert", "--sequence-length=32", "--workers=1"]
    assert main([*given, "--extend-vocab=5000", f"--out={tmp_path}/out"]) == 2
    assert "entries to add: use --extend-vocab" in capsys.readouterr().err
    assert main([f"--corpus={tmp_path}/notes.txt", "--extend-vocab=5", f"--out={tmp_path}/out"]) == 2
    assert "nothing to extend: give the --tokenizer" in capsys.readouterr().err
    with pytest.raises(PrepError, match="out of range"):
        PrepSettings(extend_vocab=-1)


def test_what_better_entries_shorten_is_no_reason_for_another():
    """What better entries have shortened already is no reason for another one in the same round."""
    cuts = {"abcd": ["a", "##b", "##c", "##d"], "xyx": ["x", "##y", "##x"]}
    assert _best(cuts, Counter({"abcd": 10, "xyx": 4}), 3) == ["abcd", "xyx"]
