"""Vectors beside those of sentence-transformers, from the same folders."""

import json

import numpy as np
import pytest
import transformers

from finetune.settings import FinetuneError
from finetune.vectors.embedder import Embedder
from finetune.vectors.sentence_model import SentenceModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
transformers.utils.logging.disable_progress_bar()

TEXTS = [f"{'heart rate of the patient ' * (n * 7 % 5)}was {n} [mask] stable, {n * n}." for n in range(12)]
TEXTS += [
    "a",
    "😀 heart e\u0301\u0301 ñandú",
    "x" * 1000,
    "İstanbul 中文 rate",
    "tab\tnew\nline\u00a0wide",
    "a-b_c...d",
]


def near(found, expected, share):
    return found.shape == expected.shape and np.abs(found - expected).max() <= share * np.abs(expected).max()


def opened(folder):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.parametrize(("pooling", "layer", "normalize", "length"), [
    ("mean", -1, False, 48), ("mean", -1, True, 16), ("cls", -1, False, 16), ("max", -1, True, 48),
    ("mean", 1, False, 16), ("cls", 1, True, 16),
])  # fmt: skip
def test_a_saved_folder_gives_the_same_vectors(encoder, tmp_path, pooling, layer, normalize, length):
    ours = Embedder(encoder, pooling=pooling, layer=layer, normalize=normalize, sequence_length=length)
    ours.save(tmp_path / "search")
    theirs = opened(tmp_path / "search")
    assert theirs.max_seq_length == length
    assert near(ours.embed(TEXTS), theirs.encode(TEXTS, batch_size=5), 1e-5)
    ours.model.double()
    assert near(ours.embed(TEXTS), theirs.double().encode(TEXTS, batch_size=5), 1e-8)


def test_a_pretrained_folder_gives_the_same_vectors_as_it_is(encoder):
    assert near(Embedder(encoder).embed(TEXTS), opened(encoder).encode(TEXTS), 1e-5)


def test_tokens_are_the_same(encoder):
    theirs = opened(encoder).encode(TEXTS, output_value="token_embeddings")
    for ours, each in zip(Embedder(encoder).embed_tokens(TEXTS), theirs, strict=True):
        assert near(ours["vectors"], each.numpy()[1:-1], 1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_folder_that_it_writes_is_read(encoder, tmp_path, pooling):
    Embedder(encoder, pooling=pooling, normalize=True, sequence_length=16).save(tmp_path / "ours")
    theirs = opened(tmp_path / "ours")
    theirs.save(str(tmp_path / "theirs"))
    said = SentenceModel.read(tmp_path / "theirs")
    assert (said.pooling, said.normalize, said.sequence_length) == (pooling, True, 16)
    assert near(Embedder(tmp_path / "theirs").embed(TEXTS), theirs.encode(TEXTS), 1e-5)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"])
def test_a_length_is_read_under_the_name_of_each_family(encoder, tmp_path, family):
    Embedder(encoder, sequence_length=10).save(folder := tmp_path / "model")
    told = folder / f"sentence_{family}_config.json"
    (folder / "sentence_bert_config.json").rename(told)
    # What the tokenizer says would do for ours.
    tokenizer = folder / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"model_max_length": 40}))
    assert Embedder(folder).sequence_length == opened(folder).max_seq_length == 10
    told.write_text('{"max_seq_length": 2}')
    with pytest.raises(FinetuneError, match=rf"{told.name} is damaged"):
        Embedder(folder)
