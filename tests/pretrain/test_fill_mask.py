"""Words under masks: whatever the terminal writes, with streams that are closed, and of which scores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model import BertForMaskedLM
from pretrain.engine.settings import PretrainError
from pretrain.fill_mask import MaskFiller

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/formats/0.1.0/bert"


def fill(*more: str, given: bytes | None = b"", closed: str = "", **environment: str) -> subprocess.CompletedProcess:
    """The command in a shell, with streams closed as it says there."""
    command = f'exec "$0" -m pretrain.fill_mask --model {FOLDER} --top-k 1 "$@" {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["sh", "-c", command, sys.executable, *more], input=given, capture_output=True,
                          env=environment, cwd=ROOT)  # fmt: skip


def test_what_nobody_types_is_utf_8_whatever_the_terminal_writes():
    expected = fill(given="café [MASK]".encode()).stdout
    for environment in (
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
    ):
        found = fill(given="café [MASK]".encode(), **environment)
        assert found.returncode == 0 and found.stdout.splitlines()[1:] == expected.splitlines()[1:]
    found = fill(given=b"\xff [MASK]", LC_ALL="C.UTF-8")
    assert (found.returncode, found.stderr) == (2, b"error: standard input is not valid UTF-8: save it as UTF-8\n")


def test_settings_that_are_printed_into_a_file_are_read_again(tmp_path):
    command = [sys.executable, "-m", "data_prep.run", "--print-config"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    first = subprocess.run([*command, "--corpus", "é"], capture_output=True, env=environment, check=True).stdout
    (tmp_path / "a.yaml").write_bytes(first)
    again = subprocess.run([*command, f"--config={tmp_path / 'a.yaml'}"], capture_output=True, env=environment)
    assert "- é".encode() in first and again.stdout == first


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(closed):
    found = fill("a [MASK]", closed=closed)
    assert found.returncode == 0 and b"Traceback" not in found.stderr
    assert found.stdout.startswith(b"a [MASK]\n   ") or ">&-" in closed


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


def test_weights_that_are_not_finite_are_one_sentence():
    filler = MaskFiller(FOLDER)
    filler.model.mlm_head.bias.data[7] = float("nan")
    with pytest.raises(PretrainError, match="numbers that are not finite"):
        filler(["a [MASK]"])
