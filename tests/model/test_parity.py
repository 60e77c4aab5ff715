"""The numbers of transformers' BERT, from the same weights."""

import random

import pytest
import torch
import torch.nn.functional as F
import transformers

import model
from model.names import BERT_NAMES


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1e-3)


def same_gradients(ours, theirs, tolerance):
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        names = BERT_NAMES.of(name)
        expected = torch.cat([reference[n].grad for n in names])
        largest = expected.abs().max()
        assert (parameter.grad - expected).abs().max() <= tolerance * largest + 1e-15, name


def pretraining_case(seed):
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 3, 4])
    sizes = {
        "vocab_size": draw.randrange(30, 120),
        "hidden_size": heads * draw.choice([4, 8, 10]),
        "num_hidden_layers": 1 + seed % 3,
        "num_attention_heads": heads,
        "intermediate_size": draw.randrange(8, 50),
        "max_position_embeddings": 32,
        "type_vocab_size": draw.choice([2, 3]),
        "hidden_act": draw.choice(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return sizes, draw.randrange(2, 6), draw.randrange(2, 30)


def labels_for(ids, mask):
    labels = torch.where(torch.rand(ids.shape) < 0.4, ids, -100)
    labels[0, 0] = ids[0, 0]
    return labels.masked_fill(mask == 0, -100)


@pytest.mark.parametrize("seed", range(20))
def test_pretraining_outputs_and_gradients_equal_transformers_packed_and_padded(seed, twins, ragged, pack):
    sizes, rows, columns = pretraining_case(seed)
    torch.manual_seed(seed)
    theirs, ours = twins("BertForPreTraining", sizes)
    ids, types, mask = ragged(rows, columns, sizes["vocab_size"])
    labels, relation = labels_for(ids, mask), torch.randint(0, 2, (rows,))
    for dtype, output_tolerance, gradient_tolerance in (
        (torch.float64, 1e-8, 1e-8),
        (torch.float32, 1e-5, 1e-4),
    ):
        theirs.to(dtype).zero_grad()
        ours.to(dtype).zero_grad()
        expected = theirs(ids, mask, types, labels=labels, next_sentence_label=relation)
        expected.loss.backward()

        padded = ours(ids, mask, types, labels=labels, next_sentence_label=relation)
        real = mask.bool()
        close(padded.prediction_logits[real], expected.prediction_logits[real], output_tolerance)
        close(padded.seq_relationship_logits, expected.seq_relationship_logits, output_tolerance)
        close(padded.loss, expected.loss, output_tolerance)
        assert not padded.prediction_logits[~real].any()
        padded.loss.backward()
        same_gradients(ours, theirs, gradient_tolerance)

        ours.zero_grad()
        batch, packed_labels = pack(ids, types, mask), labels[real]
        masked = (packed_labels != -100).nonzero().squeeze(1)
        scores, relation_scores = ours.forward_packed(batch, masked)
        close(scores, expected.prediction_logits[labels != -100], output_tolerance)
        loss = F.cross_entropy(scores, packed_labels[masked]) + F.cross_entropy(relation_scores, relation)
        loss.backward()
        same_gradients(ours, theirs, gradient_tolerance)

        ours.zero_grad()
        whole = ours(batch, labels=packed_labels, next_sentence_label=relation)
        close(whole.prediction_logits, expected.prediction_logits[real], output_tolerance)
        close(whole.loss, expected.loss, output_tolerance)
        whole.loss.backward()
        same_gradients(ours, theirs, gradient_tolerance)


def task_labels(name, rows, columns, mask):
    if name == "BertForMaskedLM":
        return {"labels": torch.randint(0, 61, (rows, columns)).masked_fill(mask == 0, -100)}
    if name == "BertForTokenClassification":
        return {"labels": torch.randint(0, 3, (rows, columns)).masked_fill(mask == 0, -100)}
    if name == "BertForNextSentencePrediction":
        return {"labels": torch.tensor([0, 1, -100, 1])}
    return {"labels": torch.tensor([0, 2, 1, 2])}


@pytest.mark.parametrize(
    "name",
    [
        "BertForMaskedLM",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForTokenClassification",
    ],
)
def test_task_logits_and_losses_equal_transformers(name, twins, sizes, ragged):
    labelled = "Classification" in name
    theirs, ours = twins(name, sizes, **({"num_labels": 3} if labelled else {}))
    ids, types, mask = ragged(4, 11, 61)
    labels = task_labels(name, 4, 11, mask)
    expected, output = theirs(ids, mask, types, **labels), ours(ids, mask, types, **labels)
    per_token = expected.logits.dim() == 3
    rows = mask.bool() if per_token else slice(None)
    close(output.logits[rows], expected.logits[rows], 1e-8)
    close(output.loss, expected.loss, 1e-8)
    assert output.keys() == list(expected.keys())
    assert output[0] is output.loss and output["logits"] is output.logits
    if name != "BertForMaskedLM":
        packed = ours(model.PackedBatch.from_padded(ids, types, mask)).logits
        close(packed, expected.logits[rows], 1e-8)


@pytest.mark.parametrize(
    ("num_labels", "problem_type", "labels"),
    [
        (1, None, torch.tensor([0.5, -1.0, 2.0])),
        (3, "regression", torch.randn(3, 3).double()),
        (3, None, torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 1]]).double()),
        (3, None, torch.tensor([2, 0, 1])),
        (3, "single_label_classification", torch.tensor([2, -100, 1])),
    ],
)
def test_sequence_losses_follow_the_problem_type(num_labels, problem_type, labels, twins, sizes, ragged):
    theirs, ours = twins("BertForSequenceClassification", sizes, num_labels=num_labels)
    theirs.config.problem_type = ours.config.problem_type = problem_type
    ids, types, mask = ragged(3, 9, 61)
    labels = labels.double() if labels.is_floating_point() else labels
    expected = theirs(ids, mask, types, labels=labels).loss
    close(ours(ids, mask, types, labels=labels).loss, expected, 1e-8)


def test_question_answering_equals_transformers_and_never_answers_in_padding(twins, sizes, ragged):
    theirs, ours = twins("BertForQuestionAnswering", sizes)
    ids, types, mask = ragged(4, 11, 61)
    places = {"start_positions": torch.tensor([0, 3, 40, 10]), "end_positions": torch.tensor([2, 5, 1, 10])}
    expected, output = theirs(ids, None, types, **places), ours(ids, None, types, **places)
    close(output.loss, expected.loss, 1e-8)
    close(output.end_logits, expected.end_logits, 1e-8)
    expected, output = theirs(ids, mask, types), ours(ids, mask, types)
    close(output.start_logits[mask.bool()], expected.start_logits[mask.bool()], 1e-8)
    assert (output.start_logits[mask == 0] < -1e30).all()
    # A row whose labels are in its padding counts as little as one whose labels are past the end.
    ends = mask.sum(1)
    assert (ends < 11).any()
    losses = [ours(ids, mask, types, start_positions=0 * ends, end_positions=places).loss
              for places in (torch.where(ends < 11, ends, 0), torch.where(ends < 11, 99, 0))]  # fmt: skip
    assert losses[0] == losses[1] < 1e3
    assert output.keys() == ["start_logits", "end_logits"]


def test_multiple_choice_equals_transformers(twins, sizes, ragged):
    theirs, ours = twins("BertForMultipleChoice", sizes)
    ids, types, mask = (values.view(3, 4, 9) for values in ragged(12, 9, 61))
    labels = torch.tensor([3, 0, 1])
    expected, output = theirs(ids, mask, types, labels=labels), ours(ids, mask, types, labels=labels)
    close(output.logits, expected.logits, 1e-8)
    close(output.loss, expected.loss, 1e-8)


def test_hidden_states_and_attentions_equal_transformers(twins, sizes, ragged):
    theirs, ours = twins("BertModel", sizes)
    ids, types, mask = ragged(4, 11, 61)
    asked = {"output_hidden_states": True, "output_attentions": True}
    expected, output = theirs(ids, mask, types, **asked), ours(ids, mask, types, **asked)
    real = mask.bool()
    assert output.keys() == [key for key in expected.keys() if key != "cross_attentions"]
    close(output.pooler_output, expected.pooler_output, 1e-8)
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
    for state, reference in zip(output.hidden_states, expected.hidden_states, strict=True):
        close(state[real], reference[real], 1e-8)
    for weights, reference in zip(output.attentions, expected.attentions, strict=True):
        close(weights.transpose(1, 2)[real], reference.transpose(1, 2)[real], 1e-8)
    assert ours(ids, mask, types).keys() == ["last_hidden_state", "pooler_output"]


def test_left_padding_keeps_column_numbers_as_positions(twins, sizes, ragged):
    theirs, ours = twins("BertModel", sizes)
    ids, types, mask = ragged(4, 11, 61)
    mask = mask.flip(1)
    asked = {"output_attentions": True}
    expected, output = theirs(ids, mask, types, **asked), ours(ids, mask, types, **asked)
    real = mask.bool()
    close(output.last_hidden_state[real], expected.last_hidden_state[real], 1e-8)
    ours_weights, their_weights = output.attentions[0], expected.attentions[0]
    close(ours_weights.transpose(1, 2)[real], their_weights.transpose(1, 2)[real], 1e-8)


def test_bfloat16_autocast_is_near_the_float32_numbers(twins, sizes, ragged, pack):
    _, ours = twins("BertForPreTraining", sizes)
    ours.float()
    ids, types, mask = ragged(5, 17, 61)
    batch, masked = pack(ids, types, mask), (labels_for(ids, mask)[mask.bool()] != -100).nonzero().squeeze(1)
    exact, _ = ours.forward_packed(batch, masked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = ours.forward_packed(batch, masked)
        hidden = ours.bert(batch).last_hidden_state
    assert rounded.dtype == torch.bfloat16
    assert hidden.dtype == torch.float32, "the residual stream and LayerNorm stay in float32"
    assert 0 < (rounded.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_transformers_defaults_are_ours():
    theirs, ours = transformers.BertConfig(), model.BertConfig()
    for name, value in vars(ours).items():
        if name not in ("id2label", "label2id", "classifier_hidden_layers"):
            assert getattr(theirs, name) == value, name
