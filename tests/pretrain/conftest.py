import random

import pytest
import torch

from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings


@pytest.fixture(autouse=True)
def threads_as_before():
    """Runs leave torch the threads that they had."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


WORDS = (
    "the a cell tissue patient trial dose group heart blood liver kidney study effect risk rate level change test drug "
    "was is were had gave showed found raised lowered treated measured observed in of with after before under high low"
).split()


def write_corpus(path, documents: int = 150, sentences: int = 12) -> None:
    """Made-up documents: each favours its own words, so that there is something to learn."""
    rng = random.Random(0)
    blocks = []
    for _ in range(documents):
        favourites = rng.sample(WORDS, 8)
        lines = [" ".join(rng.choices(favourites + WORDS, k=rng.randint(4, 14))) + " ." for _ in range(sentences)]
        blocks.append("\n".join(lines))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "made_up.txt"
    write_corpus(path)
    return path


@pytest.fixture(scope="session")
def prepared(corpus_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "made_up"
    settings = PrepSettings(corpus=(str(corpus_file),), vocab_size="auto", workers=1)
    return prepare(settings, ExampleSettings(sequence_length=48), out)
