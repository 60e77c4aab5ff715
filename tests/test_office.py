"""What an office asks: nothing leaves the machine, no text in what is written for people, folders that can be moved."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest

from data_prep.run import main as prepare
from finetune.embed import main as embed
from finetune.predict import main as predict
from finetune.run import main as finetune
from pretrain.fill_mask import main as fill_mask
from pretrain.run import main as pretrain

ROOT = Path(__file__).parents[1]
# In every text; in one document only, often.
NAME, PATIENT = "zorblatt", "quixbert"
WORDS = "the heart rate of a patient was measured before and after treatment with drug level change rise".split()
SMALL = [
    "--preset=tiny",
    "--sequence-length=32",
    "--batch-size=8",
    "--device=cpu",
    "--budget=4steps",
    "--evaluations=1",
]
connections: list[tuple] = []


def _notice(event: str, arguments: tuple) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.bind"):
        connections.append((event, *arguments[1:]))
    elif event == "socket.connect" and arguments[0].family != getattr(socket, "AF_UNIX", None):
        connections.append((event, arguments[1]))


sys.addaudithook(_notice)


def lines(rng: random.Random, count: int) -> list[str]:
    return [" ".join([NAME.title(), *rng.choices(WORDS, k=9)]) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def office(tmp_path_factory) -> tuple[Path, str]:
    """A folder in which everything was done with --show-text no, and all that was printed. No connection was opened."""
    folder, rng = tmp_path_factory.mktemp("office"), random.Random(0)
    documents = ["\n".join(lines(rng, 8)) for _ in range(60)]
    documents[11] += "\n" + "\n".join([f"{PATIENT.title()} {line}" for line in lines(rng, 40)])
    (folder / "notes.txt").write_text("\n\n".join(documents))
    rows = [{"text": lines(rng, 1)[0], "label": rng.choice(["up", "down"])} for _ in range(60)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quiet = "--show-text=no"
    steps = [
        (prepare, [f"--corpus={folder}/notes.txt", f"--out={folder}/prepared", "--static-masks=1", quiet,
                   "--min-documents=5", "--sequence-length=32", "--workers=1"]),
        (pretrain, [f"--corpus={folder}/notes.txt", "--dry-run", quiet, *SMALL]),
        (pretrain, [f"--prepared={folder}/prepared", f"--out={folder}/run", quiet, *SMALL]),
        (finetune, [f"--model={folder}/run/final", f"--train={folder}/labels.jsonl", f"--test={folder}/labels.jsonl",
                    f"--out={folder}/labels", quiet, "--budget=4steps", "--compare", "scratch"]),
    ]  # fmt: skip
    connections.clear()
    stream = (folder / "printed.txt").open("w+")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        for main, given in steps:
            assert main(given) == 0, (stream.seek(0), stream.read())
    assert not connections
    stream.seek(0)
    return folder, stream.read()


@pytest.fixture(scope="module")
def open_office(office) -> tuple[Path, str]:
    """The same corpus prepared without these options, and what was printed."""
    folder, _ = office
    with (folder / "printed_openly.txt").open("w+") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        given = [f"--corpus={folder}/notes.txt", f"--out={folder}/open", "--sequence-length=32", "--workers=1"]
        assert prepare(given) == 0
        stream.seek(0)
        return folder / "open", stream.read()


def written(folder: Path) -> list[Path]:
    return [
        path for name in ("prepared", "run", "labels") for path in sorted((folder / name).rglob("*")) if path.is_file()
    ]


def test_no_connection_is_opened(office):
    connections.clear()
    folder, _ = office
    model, labels = f"--model={folder}/run/final", f"{folder}/labels.jsonl"
    assert predict([f"--model={folder}/labels/run/final", labels, f"--out={folder}/found.jsonl"]) == 0
    assert embed([model, labels, f"--out={folder}/vectors.npy"]) == 0
    assert fill_mask([model, "the [MASK] rate"]) == 0
    assert not connections
    with socket.socket() as probe, pytest.raises(OSError):
        probe.connect(("127.0.0.1", 9))
    assert connections, "the test would not have seen a connection"


def test_no_text_is_shown_or_written_but_as_ids_and_words(office):
    folder, printed = office
    assert NAME not in printed.lower()
    showing = {path.name for path in written(folder) if NAME.encode() in path.read_bytes().lower()}
    assert showing == {"vocab.txt", "tokenizer.json"}


def test_text_is_shown_where_it_is_not_forbidden(open_office):
    folder, printed = open_office
    assert NAME in printed.lower()
    for name in ("prep.log", "prep_report.md", "prep_report.json"):
        assert NAME in (folder / name).read_text().lower()


def test_what_one_document_alone_holds_is_no_word(office, open_office):
    folder, _ = office
    vocabulary = (folder / "prepared/tokenizer/vocab.txt").read_text().split("\n")
    assert NAME in vocabulary and PATIENT not in vocabulary
    assert PATIENT in (open_office[0] / "tokenizer/vocab.txt").read_text().split("\n")
    documents = [text.lower() for text in (folder / "notes.txt").read_text().split("\n\n")]
    for entry in vocabulary:
        if not (entry.startswith("[") and entry.endswith("]")):
            piece = entry.removeprefix("##")
            assert sum(piece in document for document in documents) >= 5, entry


def test_entries_that_no_two_documents_could_share_are_refused(office, tmp_path, capsys):
    folder, _ = office
    given = [f"--corpus={folder}/notes.txt", "--min-documents=500", "--workers=1", f"--out={tmp_path}/prepared"]
    assert prepare(given) == 2
    assert capsys.readouterr().err == "error: nothing occurs in 500 documents: give a lower --min-documents\n"


def test_a_classifier_is_not_asked_to_fill_masks(office, capsys):
    folder, _ = office
    model = next((folder / "labels").glob("*/final"))
    assert fill_mask([f"--model={model}", "the [MASK] rate"]) == 2
    assert "give a pretrained model, not a classifier" in capsys.readouterr().err


def test_predictions_and_rows_taken_for_names_stay_off_the_screen(office, tmp_path, capsys):
    folder, _ = office
    model = next((folder / "labels").glob("*/final"))
    given = [f"--model={model}", f"{folder}/labels.jsonl", "--show-text=no"]
    assert predict(given) == 2 and "give --out" in capsys.readouterr().err
    assert predict([*given, f"--out={tmp_path}/found.jsonl"]) == 0
    printed = capsys.readouterr()
    assert NAME not in (printed.out + printed.err).lower()
    assert NAME in (tmp_path / "found.jsonl").read_text().lower()
    (tmp_path / "letters.csv").write_text(f"7,{NAME} fell\n8,{NAME} is well\n")
    assert prepare([f"--corpus={tmp_path}/letters.csv", f"--out={tmp_path}/prepared", "--show-text=no"]) == 2
    assert NAME not in "".join(capsys.readouterr())
    (tmp_path / "new.csv").write_text(f"7,{NAME} fell\n8,{NAME} is well\n")
    assert predict([given[0], f"{tmp_path}/new.csv", given[2], f"--out={tmp_path}/more.csv"]) == 2
    assert NAME not in capsys.readouterr().err and not (tmp_path / "more.csv").exists()


def test_paths_are_in_settings_and_logs_alone(office):
    folder, _ = office
    showing = {path.name for path in written(folder) if str(folder).encode() in path.read_bytes()}
    assert showing <= {"settings.yaml", "prep.log"}


def test_the_page_on_privacy_names_every_file(office):
    folder, _ = office
    page = (ROOT / "docs/privacy.md").read_text()
    table = page.split("## Every file")[1].split("\n## ")[0]
    named = [
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]
    for path in written(folder):
        place = path.relative_to(folder).as_posix()
        assert any(fnmatch(f"/{place}", f"*/{name}") or f"/{name}" in f"/{place}" for name in named), place


def test_settings_say_nothing_of_a_corpus_that_was_prepared_before(office):
    """The rules that it was prepared by stand in its report and on the model card."""
    folder, _ = office
    settings = (folder / "run/settings.yaml").read_text()
    assert "prepared: " in settings and "corpus" not in settings and "min_documents" not in settings
    assert "| min_documents | 5 |" in (folder / "run/final/README.md").read_text()
    assert '"min_documents": 5' in (folder / "prepared/prep_report.json").read_text()


def test_a_run_on_a_prepared_corpus_goes_on_whatever_stands_beside_it(office, capsys):
    folder, _ = office
    shutil.copytree(folder / "run", folder / "resumed")
    given = [f"--prepared={folder}/prepared", f"--out={folder}/resumed", *SMALL]
    for quiet in (["--show-text=no"], []):
        assert pretrain([*given, *quiet]) == 0
        assert "finished" in capsys.readouterr().out
    # As an earlier version wrote them.
    settings = folder / "resumed/settings.yaml"
    settings.write_text(settings.read_text() + "show_text: 'no'\nmin_documents: 1\n")
    assert pretrain([*given, "--show-text=no", "--budget=6steps"]) == 0
    assert "Resuming from" in capsys.readouterr().out


def test_a_run_of_another_command_is_told_apart(office, capsys):
    folder, _ = office
    given = [f"--model={folder}/run/final", f"--train={folder}/labels.jsonl", f"--out={folder}/run"]
    assert finetune(given) == 2
    assert "run holds a run of another command, or of another version: give another --out" in capsys.readouterr().err


@pytest.mark.parametrize(("module", "number"), [("data_prep.run", signal.SIGTERM), ("pretrain.run", signal.SIGHUP)])
def test_a_plan_that_is_ended_leaves_nothing(office, module, number, tmp_path):
    folder, _ = office
    command = [sys.executable, "-m", module, f"--corpus={folder}/notes.txt", "--dry-run", "--show-text=no"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as plan:
        while plan.poll() is None and not any(tmp_path.glob("domain-bert-*/*")):
            time.sleep(0.01)
        plan.send_signal(number)
        assert plan.wait(30) == 128 + number and not plan.stderr.read()
    assert not any(tmp_path.iterdir())


def test_a_prepared_corpus_and_a_model_work_where_they_are_moved_to(office, tmp_path):
    folder, _ = office
    shutil.copytree(folder / "prepared", tmp_path / "elsewhere")
    shutil.copytree(folder / "run/final", tmp_path / "model")
    os.chmod(tmp_path / "elsewhere", 0o555)
    assert pretrain([f"--prepared={tmp_path}/elsewhere", f"--out={tmp_path}/run", *SMALL]) == 0
    moved, first = (json.loads((place / "results.json").read_text()) for place in (tmp_path / "run", folder / "run"))
    assert moved["prepared"] == first["prepared"] and moved["validation"] == first["validation"]
    assert fill_mask([f"--model={tmp_path}/model", "the [MASK] rate"]) == 0


def test_a_run_goes_on_where_it_is_moved_to(office, tmp_path, capsys):
    folder, _ = office
    given = [f"--corpus={folder}/notes.txt", *SMALL, "--workers=1"]
    assert pretrain([*given, f"--out={tmp_path}/here"]) == 0
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert pretrain([*given, f"--out={tmp_path}/there", "--budget=6steps"]) == 0
    assert "Resuming from" in capsys.readouterr().out
