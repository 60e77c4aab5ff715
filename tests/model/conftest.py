"""Small models, with transformers as the oracle: the same weights on both sides, through a folder."""

import pytest
import torch
import transformers

import model

transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def seeded_on_one_thread():
    """One thread: models this small only wait for a second one, for seconds where the machine is busy."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def sizes():
    """Arguments that both BertConfig classes take; no dropout, so that train and eval agree."""
    return {
        "vocab_size": 61,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 20,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


@pytest.fixture
def twins(tmp_path):
    """(class name, sizes) -> transformers' model with random weights, ours read from its folder; float64."""

    def make(name, sizes, **changes):
        theirs = getattr(transformers, name)(transformers.BertConfig(**sizes, **changes))
        for parameter in theirs.parameters():
            # Biases and LayerNorms away from 0 and 1, or errors there would not show.
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        theirs.config._attn_implementation = "eager"
        theirs.save_pretrained(tmp_path / "theirs")
        ours = getattr(model, name).from_pretrained(tmp_path / "theirs")
        return theirs.double().eval(), ours.double()

    return make


@pytest.fixture
def ragged():
    """(rows, columns, vocabulary) -> ids without id 0, token types, and a 0/1 mask with one full row."""

    def make(rows, columns, vocabulary):
        ids = torch.randint(1, vocabulary, (rows, columns))
        types = torch.randint(0, 2, (rows, columns))
        lengths = torch.randint(1, columns + 1, (rows,))
        lengths[0] = columns
        mask = (torch.arange(columns) < lengths[:, None]).long()
        return ids, types, mask

    return make


@pytest.fixture
def pack():
    """Padded tensors -> a PackedBatch built by hand, row after row."""

    def make(ids, types, mask):
        rows = [torch.nonzero(row).squeeze(1) for row in mask]
        flat = lambda values: torch.cat([v[r] for v, r in zip(values, rows, strict=True)])  # noqa: E731
        lengths = torch.tensor([len(row) for row in rows])
        starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
        return model.PackedBatch(flat(ids), flat(types), torch.cat(rows), starts, int(lengths.max()))

    return make
