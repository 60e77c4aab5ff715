"""Secrets under masks: ranks and guesses against brute force, and what is said of them."""

import csv
import math

import pytest
import torch

from pretrain.engine.settings import PretrainError
from pretrain.exposure import Exposure, Found, Marked, chance_exposure, main, read_marked, summary
from pretrain.run import main as pretrain

NAMES = ["cell", "tissue", "patient", "trial", "dose", "heart", "blood", "liver"]


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("exposure") / "run"
    given = {"prepared": prepared.folder, "out": out, "budget": "4steps", "preset": "tiny", "sequence-length": 48,
             "batch-size": 8, "device": "cpu", "precision": "fp32", "evaluations": 1}  # fmt: skip
    assert pretrain([f"--{name}={value}" for name, value in given.items()]) == 0
    return out / "final"


@pytest.fixture(scope="module")
def theirs(folder):
    transformers = pytest.importorskip("transformers")
    return transformers.BertForMaskedLM.from_pretrained(folder).eval()


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n\n".join(f"the [[{name}]] was treated in a group." for name in NAMES) + "\n")
    return path


def by_brute_force(theirs, left, candidate, right, mask_id):
    """The log probability of the pieces from the left, those behind masked, one forward pass a piece."""
    total = 0.0
    for place, piece in enumerate(candidate):
        row = [*left, *candidate[:place], *[mask_id] * (len(candidate) - place), *right]
        with torch.no_grad():
            total += theirs(torch.tensor([row])).logits[0, len(left) + place].double().log_softmax(-1)[piece].item()
    return total


def test_scores_are_held_for_some_rows_at_a_time(folder):
    exposure = Exposure(folder)
    row = [exposure.tokenizer.cls_id, exposure.tokenizer.mask_id, exposure.tokenizer.sep_id]
    sizes = [scores.shape for scores in exposure._scores([row] * 130, 1)]
    assert sizes == [(rows, exposure.tokenizer.vocab_size) for rows in (64, 64, 2)]


def test_scores_are_made_of_the_place_that_is_asked_alone(folder, monkeypatch):
    exposure = Exposure(folder)
    row = [exposure.tokenizer.cls_id, *[exposure.tokenizer.mask_id] * 20, exposure.tokenizer.sep_id]
    scored, model = [], exposure._filler.model
    made = model.word_scores
    monkeypatch.setattr(model, "word_scores", lambda hidden: scored.append(len(hidden)) or made(hidden))
    assert [len(scores) for scores in exposure._scores([row] * 70, 5)] == scored == [64, 6]


@pytest.mark.parametrize("rows_at_once", [64, 2])
def test_ranks_are_those_of_brute_force(rows_at_once, folder, theirs, monkeypatch):
    monkeypatch.setattr("pretrain.exposure._ROWS_AT_ONCE", rows_at_once)
    secrets = ["heart cell", "heart dose", "liver cell", "trial", "blood test drug", "risk rate level", "liver drug"]
    exposure = Exposure(folder, names=["kidney risk", "risk drug test"])
    tokenizer = exposure.tokenizer
    found = exposure([Marked(n, "the patient", secret, "had a high dose") for n, secret in enumerate(secrets)])
    pieces = {name: tokenizer.encode([name])[0] for name in [*secrets, *exposure.names]}
    before, after = tokenizer.encode(["the patient", "had a high dose"])
    left, right = [tokenizer.cls_id, *before], [*after, tokenizer.sep_id]
    assert [(one.pieces, one.candidates) for one in found[:5]] == [(2, 5), (2, 5), (2, 5), (1, 1), (3, 3)]
    for secret, one in zip(secrets, found, strict=True):
        alike = {tuple(ids) for ids in pieces.values() if len(ids) == one.pieces}
        scores = {ids: by_brute_force(theirs, left, ids, right, tokenizer.mask_id) for ids in alike}
        own = scores[tuple(pieces[secret])]
        assert one.candidates == len(alike) and one.rank == 1 + sum(score > own + 1e-6 for score in scores.values())


def test_what_a_model_says_by_itself_is_recovered(folder, tmp_path, sentences, capsys):
    exposure = Exposure(folder)
    exposure._filler.model.mlm_head.bias.data[exposure.tokenizer.encode(["trial"])[0][0]] = 50.0
    found = exposure(read_marked(str(sentences)))
    assert [one.is_recovered for one in found] == [name == "trial" for name in NAMES]
    assert found[NAMES.index("trial")].rank == 1 and found[NAMES.index("trial")].exposure == 3.0
    assert all(one.candidates == 8 for one in found)


def test_a_long_sentence_is_read_around_its_secret(folder):
    exposure = Exposure(folder)
    short = exposure([Marked(1, "a " * 20, "trial", " the" * 20)])
    long = exposure([Marked(1, "cell " * 300 + "a " * 22, "trial", " the" * 21 + " heart" * 300)])
    assert short[0].candidates == long[0].candidates == 1
    left, right = exposure._around(Marked(1, "cell " * 300, "trial", " heart" * 5), 1)
    assert len(left) + 1 + len(right) == 48 and len(right) == 6


@pytest.mark.parametrize("candidates", [1, 20, 2000])
def test_the_mean_exposure_of_what_is_not_known_is_that_of_random_ranks(candidates):
    mean = sum(math.log2(candidates / rank) for rank in range(1, candidates + 1)) / candidates
    assert chance_exposure(candidates) == pytest.approx(mean)


def test_what_the_vocabulary_lacks_is_not_recovered_and_has_no_rank(folder):
    names = ["Ηψπ", "Αχγ", "cell Αχγ"]
    exposure = Exposure(folder, names)
    unknown = exposure.tokenizer.unk_id
    assert exposure.tokenizer.encode([names[0]]) == [[unknown]]
    exposure._filler.model.mlm_head.bias.data[unknown] = 50.0
    found = exposure([Marked(n, "the", name, "was treated") for n, name in enumerate([*names, "cell", "trial"])])
    assert found[:3] == [Found(n, pieces, False, None, 0) for n, pieces in enumerate((1, 1, 2))]
    assert [one.candidates for one in found[3:]] == [2, 2] and found[0].exposure is None
    few, lacking = summary(found)[2:]
    assert few.startswith("2 of the secrets: fewer than 20") and lacking.startswith("3 of the secrets: a part is [UNK]")


def test_weights_that_are_not_finite_rank_nothing(folder):
    exposure = Exposure(folder, ["anna", "berta"])
    exposure._filler.model.mlm_head.bias.data[7] = float("nan")
    with pytest.raises(PretrainError, match="numbers that are not finite"):
        exposure([Marked(1, "the ", "anna", " of the")])


def test_what_is_printed_and_written_holds_no_text_unless_asked(folder, sentences, tmp_path, capsys):
    controls = tmp_path / "controls.txt"
    controls.write_text("\n".join(f"{a}{b}" for a in "bcdfg" for b in "bcdfg"))
    out = tmp_path / "found.csv"
    given = [f"--model={folder}", f"--file={sentences}", f"--controls={controls}", f"--out={out}"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "secrets                   8, of 1.0 pieces" in said and "recovered" in said
    assert not any(name in said.replace("recovered", "") for name in ("tissue", "liver"))
    rows = list(csv.DictReader(out.open()))
    assert [int(row["line"]) for row in rows] == list(range(1, 17, 2)) and set(rows[0]) == {
        "line", "pieces", "recovered", "rank", "candidates", "exposure",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no secret here", "line 1: mark one secret"),
        ("[[one]] and [[two]]", "line 1: mark one secret"),
        ("[[]] is empty", "line 1: mark one secret"),
        ("", "has no sentence"),
        ("the [[" + "patient " * 60 + "]] was", "which the model cannot read"),
    ],
)
def test_a_file_that_marks_no_secret_is_refused(text, words, folder, tmp_path, capsys):
    path = tmp_path / "marked.txt"
    path.write_text(text)
    assert main([f"--model={folder}", f"--file={path}", f"--out={tmp_path / 'found.csv'}"]) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not (tmp_path / "found.csv").exists()


def test_lines_are_those_of_an_editor(tmp_path):
    """Not parted at the page breaks of a PDF, nor at other marks that end a line for Unicode."""
    (tmp_path / "marked.txt").write_text(
        "He saw [[Alice]] today.\f\r\nThe page\u2028ended; [[Peter]] came.\n", newline=""
    )
    assert [(found.line, found.secret) for found in read_marked(str(tmp_path / "marked.txt"))] == [
        (1, "Alice"),
        (2, "Peter"),
    ]


def test_files_and_models_that_are_not_there_are_said(folder, sentences, tmp_path, capsys):
    for given, words in (
        (
            [f"--model={folder}", f"--file={sentences}", f"--out={tmp_path}"],
            "cannot be written: give the name of a file in a folder",
        ),
        ([f"--model={folder}", f"--file={sentences}", f"--out={sentences}"], "is there already, and would be lost"),
        ([f"--model={folder}"], "--file is missing"),
        ([f"--model={folder}", "--file=none.txt"], "cannot read none.txt"),
        (["--model=nowhere", f"--file={sentences}"], "nowhere"),
    ):
        assert main(given) == 2
        assert words in capsys.readouterr().err
