"""Words under masks: whatever the terminal writes, with streams that are closed, and of which scores."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model import BertForMaskedLM
from pretrain.engine.settings import PretrainError
from pretrain.fill_mask import MaskFiller, main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/formats/0.1.0/bert"


def fill(given: bytes, encoding: str, errors: str, monkeypatch) -> int:
    """The command where a program writes into standard input, as it is opened in a terminal of this encoding."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding=encoding, errors=errors))
    return main([f"--model={FOLDER}", "--top-k=1"])


@pytest.mark.parametrize(
    ("encoding", "errors"), [("ascii", "strict"), ("latin-1", "strict"), ("utf-8", "surrogateescape")]
)
def test_what_nobody_types_is_utf_8_whatever_the_terminal_writes(encoding, errors, monkeypatch, capsys):
    assert fill("café [MASK]\n".encode(), encoding, errors, monkeypatch) == 0
    assert capsys.readouterr().out.startswith("café [MASK]\n   ")
    assert fill(b"\xff [MASK]\n", encoding, errors, monkeypatch) == 2
    assert capsys.readouterr().err == "error: standard input is not valid UTF-8: save it as UTF-8\n"


def run(module: str, *arguments: str, closed: str = "", **environment: str) -> subprocess.CompletedProcess:
    """A command in a shell, with streams closed as it says there."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = ["sh", "-c", f'exec "$0" -m {module} "$@" {closed}', sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, env=environment)


def test_settings_that_are_printed_into_a_file_are_read_again(tmp_path):
    first = run("data_prep.run", "--print-config", "--corpus", "é", PYTHONIOENCODING="ascii").stdout
    (tmp_path / "a.yaml").write_bytes(first)
    again = run("data_prep.run", "--print-config", f"--config={tmp_path / 'a.yaml'}", PYTHONIOENCODING="ascii")
    assert "- é".encode() in first and again.stdout == first


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(closed):
    found = run("data_prep.run", "--print-config", closed=closed)
    assert found.returncode == 0 and not found.stderr and (found.stdout or ">&-" in closed.split())
    assert run("data_prep.run", "--corpus=nowhere", closed=closed).returncode == 2


def test_a_text_is_filled_without_standard_input():
    found = run("pretrain.fill_mask", f"--model={FOLDER}", "a [MASK]", closed="<&-")
    assert found.returncode == 0 and found.stdout.startswith(b"a [MASK]\n   ")


def test_scores_are_made_of_the_masks_alone(monkeypatch):
    filler = MaskFiller(FOLDER)
    texts = ["[MASK] the patient", "a dose", "the [MASK] [MASK] of the heart"]
    with pytest.raises(PretrainError, match="no \\[MASK\\]"):
        filler(texts)
    texts[1] = "[MASK] and a much longer text of the liver [MASK]"
    theirs, tokenizer = BertForMaskedLM.from_pretrained(FOLDER).eval(), filler.tokenizer
    expected = []
    for text in texts:
        ids = torch.tensor([filler._encode(text)])
        with torch.no_grad():
            scores = theirs(ids).logits[0][ids[0] == tokenizer.mask_id].softmax(-1)
        expected.append([tokenizer.vocabulary[word] for word in scores.argmax(-1)])
    scored, made = [], filler.model.word_scores
    monkeypatch.setattr(filler.model, "word_scores", lambda hidden: scored.append(len(hidden)) or made(hidden))
    assert [[words[0][0] for words in masks] for masks in filler(texts, top_k=1)] == expected and scored == [5]
    assert filler([]) == []


def test_from_a_terminal_a_file_is_read_many_lines_at_a_time(tmp_path, monkeypatch, capsys):
    """Typed lines are answered one by one."""
    (tmp_path / "texts.txt").write_text("a [MASK]\n" * 5)
    asked, ask = [], MaskFiller.__call__
    monkeypatch.setattr(MaskFiller, "__call__", lambda fill, texts, k: asked.append(len(texts)) or ask(fill, texts, k))

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for given, expected in (([f"--file={tmp_path / 'texts.txt'}"], [5]), (["a [MASK]"] * 3, [3]), ([], [1, 1])):
        asked.clear()
        monkeypatch.setattr(sys, "stdin", Terminal("a [MASK]\n" * 2))
        assert main([f"--model={FOLDER}", *given]) == 0 and asked == expected


def test_weights_that_are_not_finite_are_one_sentence():
    filler = MaskFiller(FOLDER)
    filler.model.mlm_head.bias.data[7] = float("nan")
    with pytest.raises(PretrainError, match="numbers that are not finite"):
        filler(["a [MASK]"])
