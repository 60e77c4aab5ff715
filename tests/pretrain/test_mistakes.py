"""Every mistake gets one clear sentence and exit code 2, and leaves nothing half-written."""

import json
import shutil

import pytest

from data_prep.durable import file_facts, read_sealed, write_sealed
from data_prep.run import main as prepare
from pretrain.fill_mask import main as fill_mask
from pretrain.run import main as pretrain

BLANK, ARCHIVE, LATIN_1 = b"  \n \n", b"PK\x03\x04\x00\x00\x00" * 50, b"good line\ncaf\xe9 au lait\n"
SENTENCE = "the heart rate of the patient was measured before and after the treatment ."


def text_file(folder, name="notes.txt", content=None):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else (content or f"{SENTENCE}\n" * 50).encode())
    return path


def empty_file(folder):
    path = folder / "notes.txt"
    path.touch()
    return path


def jsonl(folder):
    return text_file(folder, "rows.jsonl", json.dumps({"id": 1, "note": 2.5, "body_of_it": 3}) + "\n")


MISTAKES = {
    "missing file": (lambda f: [f"--corpus={text_file(f).parent / 'note.txt'}"], ["note.txt", "notes.txt"]),
    "empty file": (lambda f: [f"--corpus={text_file(f, content=b' ')}"], ["notes.txt"]),
    "file of no bytes": (lambda f: [f"--corpus={empty_file(f)}"], ["notes.txt"]),
    "blank corpus": (lambda f: [f"--corpus={text_file(f, content=BLANK)}"], ["no text", "notes.txt"]),
    "binary file": (lambda f: [f"--corpus={text_file(f, content=ARCHIVE)}"], ["binary"]),
    "invalid utf-8": (
        lambda f: [f"--corpus={text_file(f, content=LATIN_1)}"],
        ["notes.txt", "byte 13", "--encoding"],
    ),
    "column not there": (lambda f: [f"--corpus={jsonl(f)}", "--text-column=body"], ["id", "note", "body_of_it"]),
    "no text column": (lambda f: [f"--corpus={jsonl(f)}"], ["id", "note", "body_of_it"]),
    "vocabulary too large": (
        lambda f: [f"--corpus={text_file(f, content=varied_text())}", "--vocab-size=16384"],
        ["16384", "--vocab-size", "auto"],
    ),
    "vocabulary not a multiple": (lambda f: [f"--corpus={text_file(f)}", "--vocab-size=30522"], ["30528"]),
    "vocabulary of a thousand million": (
        lambda f: [f"--corpus={text_file(f)}", "--vocab-size=1000000000"],
        ["from 128 to 1,048,576: use 1048576"],
    ),
    "letters beside a tokenizer": (
        lambda f: [f"--corpus={text_file(f)}", f"--tokenizer={f}", "--no-lowercase"],
        ["--no-lowercase cannot be combined with --tokenizer"],
    ),
    "unknown language": (lambda f: [f"--corpus={text_file(f)}", "--language=enx"], ["--language", "en"]),
    "unknown encoding": (lambda f: [f"--corpus={text_file(f)}", "--encoding=utf8x"], ["utf8x"]),
    "one sentence": (lambda f: [f"--corpus={text_file(f, content=SENTENCE.encode())}"], ["notes.txt"]),
    "foreign tokenizer": (lambda f: [f"--corpus={text_file(f)}", f"--tokenizer={f}"], ["tokenizer"]),
    "unknown option": (lambda f: ["--seqence-length=64"], ["--sequence-length"]),
}  # fmt: skip


def varied_text() -> bytes:
    words = [f"{a}{b}{c}" for a in ("ka", "ro", "mi", "te") for b in ("lu", "so", "ne") for c in ("x", "r", "n")]
    return "\n".join(" ".join(words[i:] + words[:i]) for i in range(len(words))).encode()


@pytest.mark.parametrize("stage", [prepare, pretrain])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_unusable_corpus_is_refused(mistake, stage, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, words = MISTAKES[mistake]
    text_file(tmp_path / "in", "other/unrelated.txt")
    given = make(tmp_path / "in")
    out = tmp_path / "out"
    assert stage([*given, f"--out={out}", "--workers=1"]) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert not out.exists()


def assert_one_sentence(err, words):
    assert err.startswith("error: ") and err.count("\n") == 1 and not err.endswith(".\n"), err
    for word in words:
        assert word in err, err


PRETRAIN_MISTAKES = {
    "unknown preset": (["--preset=mni"], ["mini"]),
    "no budget": (["--budget=soon"], ["--budget", "30m"]),
    "learning rate": (["--learning-rate=-1"], ["--learning-rate"]),
    "learning rate is no number": (["--learning-rate=fast"], ["--learning-rate", "number"]),
    "schedule": (["--schedule=liner"], ["linear"]),
    "too short": (["--sequence-length=4"], ["--sequence-length"]),
    "device": (["--device=cuda"], ["--device", "cpu"]),
    "no prepared corpus": (["--prepared=nowhere"], ["nowhere", "data_prep.run"]),
    "no model": (["--init-from=nowhere"], ["nowhere"]),
    "two sources": (["--prepared=here", "--corpus=there"], ["--corpus", "--prepared"]),
    "negative batch": (["--batch-size=0"], ["--batch-size"]),
    "no settings file": (["--config=none.yaml"], ["none.yaml"]),
    "two vocabularies": (["--tokenizer=x", "--vocab-size=1024"], ["--vocab-size", "--tokenizer"]),
    "rare words of a given vocabulary": (["--init-from=x", "--min-documents=3"], ["--min-documents", "--init-from"]),
    "another program's name": (["--lr=1e-4"], ["--lr", "did you mean --learning-rate?"]),
    "epochs": (["--epochs", "3"], ["did you mean --budget 3epochs?"]),
    "data": (["--data", "notes/"], ["did you mean --corpus?"]),
    "cased": (["--cased"], ["did you mean --no-lowercase?"]),
    "a GPU by another name": (["--device=gpu"], ["did you mean cuda?"]),
    "a folder without its option": (["notes/"], ["did you mean --corpus notes/?"]),
    "one dash": (["-corpus", "notes/"], ["did you mean --corpus?"]),
    "no unit": (["--budget=30"], ["--budget", "30m"]),
    "a space before the unit": (["--budget", "30", "m"], ["--budget takes one value"]),
    "no value": (["--tokenizer"], ["--tokenizer: a value is missing: give a text"]),
    "no corpus": (["--corpus", "--budget=60s"], ["--corpus: a value is missing"]),
    "no validation corpus": (["--validation-corpus", "--dry-run"], ["--validation-corpus: a value is missing"]),
    "a value for a switch": (["--dry-run=yes"], ["--dry-run takes no value"]),
    "nothing to extend": (["--extend-vocab=100"], ["--extend-vocab", "--init-from"]),
    "joined lines as documents": (["--document=line", "--line=wrapped"], ["--document line", "--line wrapped"]),
    "two ways to hold out": (["--group-column=a", "--validation-corpus=b"], ["--group-column"]),
}


@pytest.mark.parametrize("stage", [prepare, pretrain])
def test_settings_without_a_text_are_refused(stage, tmp_path, capsys):
    (tmp_path / "empty.yaml").write_text("corpus: []\n")
    assert stage([f"--config={tmp_path / 'empty.yaml'}"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["no text is named: give files"])


@pytest.mark.parametrize("mistake", PRETRAIN_MISTAKES)
def test_a_wrong_argument_is_refused(mistake, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, words = PRETRAIN_MISTAKES[mistake]
    if mistake == "device":
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has the device that the test takes to be missing")
    assert pretrain([*given, "--out=out"]) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert not list(tmp_path.iterdir())


def short(prepared, out, budget):
    return [f"--prepared={prepared.folder}", f"--out={out}", "--preset=tiny", "--sequence-length=48",
            "--batch-size=8", "--device=cpu", "--evaluations=1", f"--budget={budget}"]  # fmt: skip


@pytest.fixture(scope="module")
def finished_run(prepared, tmp_path_factory):
    """A short run, to be read alone."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert pretrain(short(prepared, out, "2steps")) == 0
    return out


@pytest.fixture
def run_folder(finished_run, prepared, tmp_path, capsys):
    """A copy of it, and the arguments with which it goes on."""
    out = shutil.copytree(finished_run, tmp_path / "run")
    capsys.readouterr()
    return out, short(prepared, out, "4steps")


DAMAGE = {
    "weights cut short": "model.safetensors",
    "config is no JSON": "config.json",
    "state cut short": "training_state/state.json",
    "optimizer cut short": "training_state/optimizer.safetensors",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named(damage, run_folder, capsys):
    folder, again = run_folder
    path = folder / "checkpoints" / "step-00000002" / DAMAGE[damage]
    path.write_bytes(path.read_bytes()[:-40])
    before = (folder / "metrics.jsonl").read_bytes()
    assert pretrain(again) == 2
    assert_one_sentence(capsys.readouterr().err, [path.name])
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_refused_run_leaves_no_folder_where_none_was_named_either(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pretrain([f"--corpus={text_file(tmp_path / 'in', content=BLANK)}", "--device=cpu"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["no text"])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("stage", [prepare, pretrain])
def test_a_file_in_place_of_the_output_folder_is_left_alone(stage, tmp_path, prepared, capsys):
    path = text_file(tmp_path)
    given = [f"--prepared={prepared.folder}"] if stage is pretrain else []
    assert stage([*given, f"--out={path}"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["notes.txt", "--out"])
    assert path.is_file()


def test_a_folder_of_something_else_is_left_alone(tmp_path, prepared, capsys):
    (tmp_path / "thesis").mkdir()
    text_file(tmp_path / "thesis", "chapter.txt")
    for stage, given in ((prepare, []), (pretrain, [f"--prepared={prepared.folder}"])):
        assert stage([*given, f"--out={tmp_path / 'thesis'}"]) == 2
        assert_one_sentence(capsys.readouterr().err, ["thesis", "--out"])
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_a_model_whose_tokenizer_is_not_that_of_the_corpus_is_refused(prepared, run_folder, tmp_path, capsys):
    foreign = tmp_path / "foreign"
    shutil.copytree(run_folder[0] / "final", foreign)
    vocabulary = (foreign / "vocab.txt").read_text().splitlines()
    vocabulary[-1], vocabulary[-2] = vocabulary[-2], vocabulary[-1]
    (foreign / "tokenizer.json").unlink()
    (foreign / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    given = [f"--prepared={prepared.folder}", f"--init-from={foreign}", f"--out={tmp_path / 'x'}"]
    assert pretrain([*given, "--sequence-length=48", "--budget=1steps"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["foreign", "--tokenizer"])
    assert not (tmp_path / "x").exists()


def test_a_corpus_prepared_anew_under_a_run_is_noticed(run_folder, corpus_file, tmp_path, capsys):
    folder, again = run_folder
    other = tmp_path / "other"
    assert prepare([f"--corpus={corpus_file}", f"--out={other}", "--sequence-length=48", "--vocab-size=128"]) == 0
    capsys.readouterr()
    swapped = [f"--prepared={other}" if a.startswith("--prepared") else a for a in again]
    assert pretrain(swapped) == 2
    assert_one_sentence(capsys.readouterr().err, ["another corpus"])


@pytest.mark.parametrize("version", [None, 1, 3])
def test_a_run_begun_with_other_pairs_is_refused_and_left_as_it_is(version, run_folder, capsys):
    folder, again = run_folder
    newest = folder / "checkpoints" / "step-00000002"
    path, manifest = (newest / "training_state" / name for name in ("state.json", "manifest.json"))
    state = json.loads(path.read_text())
    assert state.pop("pairs") == 2
    path.write_text(json.dumps(state if version is None else state | {"pairs": version}))
    write_sealed(manifest, {"files": file_facts(newest, read_sealed(manifest)["files"])})
    before = path.read_bytes()
    capsys.readouterr()
    assert pretrain(again) == 2
    assert_one_sentence(capsys.readouterr().err, [str(newest), "sentence pairs", "--out"])
    assert path.read_bytes() == before


def test_a_corpus_prepared_with_other_pairs_is_trained_on_and_said(prepared, tmp_path, capsys):
    folder = shutil.copytree(prepared.folder, tmp_path / "older")
    manifest = read_sealed(folder / "prepared.json")
    del manifest["pairs"]
    write_sealed(folder / "prepared.json", manifest)
    given = ["--preset=tiny", "--sequence-length=48", "--batch-size=8", "--budget=1steps", "--device=cpu"]
    assert pretrain([f"--prepared={folder}", f"--out={tmp_path / 'run'}", *given]) == 0
    assert f"{folder} was prepared by another version" in capsys.readouterr().out
    assert pretrain([f"--prepared={prepared.folder}", f"--out={tmp_path / 'new'}", *given]) == 0
    assert "another version" not in capsys.readouterr().out


def test_a_prepared_folder_of_other_settings_is_not_overwritten(corpus_file, tmp_path, capsys):
    given = [f"--corpus={corpus_file}", f"--out={tmp_path / 'p'}"]
    assert prepare(given) == 0
    before = (tmp_path / "p" / "prepared.json").read_bytes()
    capsys.readouterr()
    assert prepare(given) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert prepare([*given, "--sequence-length=64"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["sequence_length: 128 before, 64 now"])
    assert (tmp_path / "p" / "prepared.json").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["no mask here"], ["[MASK]"]),
        (["[MASK] " * 60], ["tokens"]),
        (["a [MASK]", "--top-k=0"], ["--top-k"]),
        (["a [MASK]", "--file=x.txt"], ["--file"]),
        (["--file=x.txt"], ["x.txt"]),
    ],
)
def test_mistakes_in_filling_masks(given, words, finished_run, capsys):
    assert fill_mask([f"--model={finished_run / 'final'}", *given]) == 2
    assert_one_sentence(capsys.readouterr().err, words)


def test_filling_masks_before_anything_was_pretrained_says_what_to_do(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fill_mask(["the [MASK] rate"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["runs/builtin/final", "python -m pretrain.run", "--model"])
    assert fill_mask([f"--model={run_folder[0]}", "the [MASK] rate"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["config.json", "is not a model folder; give", "/final"])


def test_a_single_document_and_one_sentence_documents_are_no_mistake(tmp_path):
    import random

    rng = random.Random(0)
    words = varied_text().decode().split()
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(300)]
    single = text_file(tmp_path, "single.txt", "\n".join(lines))
    many = text_file(tmp_path, "many.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in lines))
    for path in (single, many):
        out = tmp_path / path.stem
        given = [f"--corpus={path}", f"--out={out}", "--preset=tiny", "--budget=2steps", "--device=cpu"]
        assert pretrain([*given, "--workers=1", "--batch-size=8"]) == 0
        assert json.loads((out / "results.json").read_text())["validation"]["nsp_accuracy"] is None
