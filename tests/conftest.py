"""Small real objects that several test files build on. Session-wide, so that hypothesis may use them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from data_prep.prepared import Shard
from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer

# The processes of a test run share the cores; read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a shell without job control starts in the background ignores SIGINT, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Do not wait for the disk: no test survives a power cut. Processes that a test starts do wait.
os.fsync = lambda descriptor: None
# No network and no deadline: tests run on machines without the one and busy with other things.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,[]"
WORDS = ("the", "of", "heart", "rate", "patient", "was", "stable", "##s", "##ing", "##ly", "##ed", "mask")


@pytest.fixture(scope="session")
def small_tokenizer() -> WordPieceTokenizer:
    """Lower-casing, 100 entries: specials, two unused slots, letters, continuing letters, a few words."""
    pieces = dict.fromkeys([*SPECIAL_TOKENS, "[unused0]", "[unused1]", *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS])
    return WordPieceTokenizer(list(pieces), lowercase=True, strip_accents=False)


@pytest.fixture(scope="session")
def shard_of() -> Callable[..., Shard]:
    """(tokens of each sentence of each document, ids, index) -> a shard; without ids they are all 0."""

    def make(documents: list[list[int]], ids: np.ndarray | None = None, index: int = 0) -> Shard:
        sentence_starts = np.cumsum([0, *(length for lengths in documents for length in lengths)])
        document_starts = np.cumsum([0, *map(len, documents)])
        if ids is None:
            ids = np.zeros(sentence_starts[-1], dtype=np.uint16)
        return Shard(index, ids, sentence_starts.astype(np.int32), document_starts.astype(np.int32))

    return make


@pytest.fixture(scope="session")
def example_data() -> Path:
    """The folder with the example data sets; tests that need it are skipped where it is not."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no example data sets beside the repository ({folder.name})")
    return folder
