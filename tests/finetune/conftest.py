"""A small model folder and labelled texts that it can learn to tell apart."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForPreTraining
from pretrain.engine.checkpoint import save_model_folder

CLASSES = {"heart": "heart rate of the patient was stable", "mask": "mask 1 2 3 [mask] 4 5", "number": "7 8 9 , 0 . 6"}


@pytest.fixture(scope="module")
def one_thread():
    """Models this small only wait for a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def encoder(small_tokenizer: WordPieceTokenizer, tmp_path_factory) -> Path:
    """A folder as pretraining leaves it: 2 layers x 32, up to 48 tokens, weights large enough to matter."""
    folder = tmp_path_factory.mktemp("model") / "run" / "final"
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(
        vocab_size=small_tokenizer.vocab_size, max_position_embeddings=48, initializer_range=0.2, **sizes
    )
    save_model_folder(BertForPreTraining(config), small_tokenizer, folder)
    return folder


def labelled_rows(count: int, first: int = 0, classes: Sequence[str] = tuple(CLASSES)) -> list[dict]:
    """Rows whose class can be read from their words; no two texts are equal."""
    rows = []
    for number in range(first, first + count):
        label = classes[number % len(classes)]
        rows.append({"text": f"{CLASSES[label]} {number}", "label": label})
    return rows


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """(rows, name="train.jsonl") -> the path of a file with these rows."""

    def write(rows: list[dict], name: str = "train.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., list[dict]]:
    """`labelled_rows`, for test files, which cannot import it."""
    return labelled_rows
