"""What is learned of vectors: losses against loops and sentence-transformers, and groups that nothing divides."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.rows import Example
from finetune.settings import FinetuneSettings
from finetune.tasks import similarity
from finetune.tasks.similarity import PAIRS, SCORES, TEXTS, Similarity
from finetune.vectors.contrast import InBatchNegatives, contrastive_losses
from finetune.vectors.cosines import TEMPERATURE
from finetune.vectors.embedder import Embedder
from finetune.vectors.groups import GroupMaker, GroupStream, grouped
from finetune.vectors.single_texts import encode_single_texts
from pretrain.engine.batches import Batches, Position
from pretrain.engine.distributed import World

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ("heart", "rates", "patient", "was", "42", "[x]", "mask", "of.", "stable")


def rows_of(count, seed=1, scored=False, paired=True):
    """Pairs of 1 to 12 words each; the first of every tenth row is that of the row before."""
    rng, rows = np.random.default_rng(seed), []

    def words():
        return " ".join(rng.choice(WORDS, rng.integers(1, 13)))

    for number in range(count):
        text = rows[-1].text if number % 10 == 9 else f"{words()} {number}"
        score = float(rng.integers(0, 6)) if scored else None
        rows.append(Example(f"x:{number + 1}", text, words() if paired else None, score))
    return rows


def built(encoder, dropout):
    return Similarity().build_model(FinetuneSettings(model=str(encoder), dropout=dropout), 1).train()


@pytest.fixture
def model(encoder):
    return built(encoder, 0.0)


def task_of(rows, kind):
    scale = (0.0, 5.0) if kind == SCORES else (0.0, 1.0)
    return Similarity(kind, scale)


# --- losses


def by_loops(first, second, first_text, second_text):
    """The loss of each text of one side, to find its own on the other side."""
    found = []
    for i, vector in enumerate(first):
        total = own = 0.0
        for j, other in enumerate(second):
            cosine = float(vector @ other / (vector.norm() * other.norm()))
            is_out = second_text[j] in (first_text[i], second_text[i]) or first_text[j] == first_text[i]
            if i == j or not is_out:
                total += math.exp(cosine / TEMPERATURE)
            own = cosine if i == j else own
        found.append(math.log(total) - own / TEMPERATURE)
    return torch.tensor(found, dtype=torch.float64)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.integers(0, 2**31))
@settings(max_examples=25)
def test_losses_are_those_of_a_loop_and_equal_texts_are_not_against_each_other(pairs, seed):
    torch.manual_seed(seed)
    vectors = torch.randn(10, 5, dtype=torch.float64)
    numbers = torch.tensor(pairs).T
    first, second = vectors[numbers[0]], vectors[numbers[1]]
    forth = by_loops(first, second, *numbers.tolist())
    back = by_loops(second, first, *numbers.flip(0).tolist())
    torch.testing.assert_close(contrastive_losses(first, second, *numbers, both_ways=False), forth)
    torch.testing.assert_close(contrastive_losses(first, second, *numbers, both_ways=True), (forth + back) / 2)


def test_two_passes_over_texts_are_those_of_simcse(encoder, small_tokenizer):
    """Equation 4 of the paper, over vectors of two passes that dropout makes different."""
    rows = rows_of(8, paired=False)
    encoded = encode_single_texts(rows, np.full(8, np.nan), small_tokenizer, 48)
    (batch,) = GroupMaker(encoded, small_tokenizer, 1, copies=2).micro_batches(np.arange(8)[None])
    ids = [batch.input_ids[a:b].tolist() for a, b in torch.stack([batch.sequence_starts[:-1],
                                                                  batch.sequence_starts[1:]], 1).tolist()]  # fmt: skip
    assert ids[0::2] == ids[1::2] and len(ids) == 16
    model = built(encoder, 0.1)
    torch.manual_seed(7)
    vectors = model(batch).pooler_output.detach().double()
    first, second = vectors[0::2], vectors[1::2]
    assert (first - second).abs().max() > 0.01, "dropout makes no difference: nothing is tested"
    expected = by_loops(first, second, list(range(8)), list(range(8))).sum()
    torch.manual_seed(7)
    found = InBatchNegatives(both_ways=False).loss_sums(model, batch)["label"]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert InBatchNegatives(both_ways=False).counts(batch) == {"label": 8.0}


# --- groups


@given(st.integers(1, 200), st.integers(1, 70), st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=40)
def test_an_epoch_has_every_text_once_in_groups_of_nearly_one_size(small_tokenizer, count, size, most, seed):
    encoded = encode_single_texts([Example("", "a")] * count, np.full(count, np.nan), small_tokenizer, 48)
    stream, seen = GroupStream(encoded, seed, most), []
    for groups, position in stream.batches(size, Position()):
        sizes = (groups >= 0).sum(1)
        assert sizes.max() <= most and sizes.max() - sizes.min() <= 1 and sizes.sum() <= size
        # As few as can be.
        assert len(groups) == math.ceil(sizes.sum() / most)
        seen += groups[groups >= 0].tolist()
        if position.epoch:
            break
    assert sorted(seen) == list(range(count))


def test_it_goes_on_at_any_batch(small_tokenizer):
    encoded = encode_single_texts([Example("", "a")] * 50, np.full(50, np.nan), small_tokenizer, 48)
    stream = GroupStream(encoded, 3, 4)
    every = [next_ for next_, _ in zip(stream.batches(11, Position()), range(14), strict=False)]
    for number, (_, position) in enumerate(every[:-1]):
        again, _ = next(GroupStream(encoded, 3, 4).batches(11, position))
        assert again.tolist() == every[number + 1][0].tolist()
    assert every[0][0].tolist() != every[5][0].tolist(), "two epochs have one order"


def gradients_of(model, objective, micro_batches):
    """Sums of the loss and of all gradients."""
    model.zero_grad()
    loss, count = 0.0, 0.0
    for batch in micro_batches:
        sums = objective.loss_sums(model, batch)
        sums["label"].backward()
        loss, count = loss + float(sums["label"].detach()), count + objective.counts(batch)["label"]
    return loss, count, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", [SCORES, PAIRS, TEXTS])
def test_a_step_is_the_same_in_any_micro_batches_and_processes(model, small_tokenizer, kind, monkeypatch):
    model.double()
    monkeypatch.setattr(similarity, "GroupStream", partial(GroupStream, group_size=8))
    rows = rows_of(40, scored=kind == SCORES, paired=kind != TEXTS)
    task = task_of(rows, kind)
    train = task.encode(rows, small_tokenizer, 48, "head")
    objective = task.objective(train, FinetuneSettings())

    def share(rank, size, tokens):
        maker = task.maker(train, small_tokenizer, tokens, [row.place for row in rows])
        batches = Batches(task.stream(train, 5), maker, 20, Position(), World(rank, size))
        batches.draw()
        return batches

    whole = share(0, 1, 10**9)
    expected = gradients_of(model, objective, whole.micro_batches())
    assert expected[1] == 20 and len(whole.identification()()) == 20
    assert sum(share(rank, 3, 1).num_tokens for rank in range(3)) == whole.num_tokens
    for size, tokens in ((1, 1), (1, 100), (2, 1), (3, 10**9), (7, 60)):
        parts = [share(rank, size, tokens) for rank in range(size)]
        # Of three groups some have none, and take part all the same.
        found = gradients_of(model, objective, [batch for part in parts for batch in part.micro_batches()])
        assert found[0] == pytest.approx(expected[0], rel=1e-10) and found[1] == 20
        torch.testing.assert_close(found[2], expected[2], rtol=1e-7, atol=1e-9)


def test_a_group_is_a_micro_batch_and_its_pairs_follow_each_other(small_tokenizer):
    rows = rows_of(10)
    encoded = encode_single_texts(rows, np.full(10, np.nan), small_tokenizer, 48)
    maker = GroupMaker(encoded, small_tokenizer, 1, [row.place for row in rows])
    groups = grouped(np.array([3, 1, 4, 0, 5]), 3)
    assert groups.tolist() == [[3, 1, 4], [0, 5, -1]]
    batches = list(maker.micro_batches(groups))
    assert [batch.num_sequences for batch in batches] == [6, 4]
    assert maker.lengths(groups).tolist() == [batch.num_tokens for batch in batches]
    assert maker.longest(groups) == max(batch.num_tokens for batch in batches)
    assert maker.identify(groups) == ["x:4", "x:2", "x:5", "x:1", "x:6"]
    texts = [text for number in (3, 1, 4) for text in rows[number].every_text()]
    starts = batches[0].sequence_starts.tolist()
    for text, begin, end in zip(texts, starts, starts[1:], strict=False):
        ids = small_tokenizer.encode([text])[0]
        expected = [small_tokenizer.cls_id, *ids, small_tokenizer.sep_id]
        assert batches[0].input_ids[begin:end].tolist() == expected


# --- sequences and vectors


def test_texts_are_sequences_of_their_own_and_long_ones_are_cut(small_tokenizer):
    rows = [Example("", "heart " * 20, "a"), Example("", "rate", "of " * 30), Example("", "the", "\u200b")]
    scores = np.array([0.5, 1.0, np.nan])
    encoded = encode_single_texts(rows, scores, small_tokenizer, 12)
    assert encoded.lengths().tolist() == [12 + 3, 3 + 12, 3 + 2]
    assert (encoded.num_texts, encoded.num_long) == (3, 2) and encoded.text.tolist() == [0, 0, 1, 1, 2, 2]
    tokens = [len(ids) for ids in small_tokenizer.encode([text for row in rows for text in row.every_text()])]
    assert encoded.num_tokens == sum(tokens) and encoded.num_cut == sum(max(0, length - 10) for length in tokens)
    np.testing.assert_array_equal(encoded.targets[:, 1], np.repeat(scores, 2).astype(np.float32))
    again = encode_single_texts([Example("", "a  b", "c"), Example("", "c", "a b")], scores[:2], small_tokenizer, 12)
    assert again.targets[:, 0].tolist() == [0, 1, 1, 0]


def test_vectors_are_those_of_finetune_embed(model, encoder, small_tokenizer):
    rows = rows_of(12)
    task = Similarity()
    encoded = task.encode(rows, small_tokenizer, 48, "head")
    texts = [text for row in rows for text in row.every_text()]
    (batch,) = task.maker(encoded, small_tokenizer, 10**9).micro_batches(np.arange(12)[None])
    found = model.eval()(batch).pooler_output
    np.testing.assert_allclose(found.detach(), Embedder(encoder).embed(texts), atol=1e-5)
    length = int(batch.sequence_starts.diff().max())
    ids = torch.zeros((24, length), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, (begin, end) in enumerate(zip(batch.sequence_starts, batch.sequence_starts[1:], strict=False)):
        ids[row, : end - begin], mask[row, : end - begin] = batch.input_ids[begin:end], 1
    torch.testing.assert_close(model(ids, mask).pooler_output, found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SCORES, PAIRS, TEXTS])
def test_losses_and_gradients_are_those_of_sentence_transformers(model, encoder, small_tokenizer, kind, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not there")
    from sentence_transformers.sentence_transformer import losses

    # No text twice: sentence-transformers takes copies for wrong answers.
    rows = rows_of(9, scored=kind == SCORES, paired=kind != TEXTS)
    task = task_of(rows, kind)
    train = task.encode(rows, small_tokenizer, 48, "head")
    maker = task.maker(train, small_tokenizer, 10**9)
    (batch,) = maker.micro_batches(np.arange(9) if kind == SCORES else np.arange(9)[None])
    objective = task.objective(train, FinetuneSettings())
    loss = objective.loss_sums(model, batch)["label"] / objective.counts(batch)["label"]
    loss.backward()

    Embedder(encoder).save(tmp_path / "folder")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "folder"), device="cpu", local_files_only=True)
    made = {
        SCORES: lambda: losses.CosineSimilarityLoss(theirs),
        PAIRS: lambda: losses.MultipleNegativesRankingLoss(
            theirs, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
        ),
        TEXTS: lambda: losses.MultipleNegativesRankingLoss(theirs),
    }[kind]()
    # Dropout is off, so that both passes over a text are the same.
    made.eval()
    sides = [row.text for row in rows], [row.text_pair or row.text for row in rows]
    features = [theirs.tokenize(side) for side in sides]
    labels = None if kind != SCORES else torch.tensor([row.label / 5 for row in rows])
    expected = made(features, labels)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    bert, mine = theirs[0].auto_model, model.bert
    pairs = [
        (mine.embeddings.word.weight, bert.embeddings.word_embeddings.weight),
        (mine.layers[0].intermediate.weight, bert.encoder.layer[0].intermediate.dense.weight),
        (mine.layers[1].output.weight, bert.encoder.layer[1].output.dense.weight),
    ]
    for ours, other in pairs:
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-3, atol=1e-4 * float(other.grad.abs().max()))
