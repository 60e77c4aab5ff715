"""The numbers of transformers' ELECTRA from the same weights; folders of both; an encoder that is also a BERT's."""

import json
import random

import pytest
import torch
import transformers
from safetensors.torch import load_file

import model
from model.electra import ElectraConfig, ElectraForPreTraining
from model.electra_names import ELECTRA_NAMES
from model.electra_pair import DiscriminatorAndGenerator, generator_config
from model.families import FAMILIES, family_of, has_mlm_head, masked_lm_folder

EQUAL, NARROW = {"embedding_size": 24}, {"embedding_size": 10}


@pytest.fixture
def electras(tmp_path):
    """(class name, sizes) -> transformers' model with random weights, ours read from its folder; float64."""

    def make(name, sizes, **changes):
        theirs = getattr(transformers, name)(transformers.ElectraConfig(**sizes, **changes))
        for parameter in theirs.parameters():
            # Biases and LayerNorms away from 0 and 1, or errors there would not show.
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        theirs.config._attn_implementation = "eager"
        theirs.save_pretrained(tmp_path / "theirs")
        ours = getattr(model, name).from_pretrained(tmp_path / "theirs")
        assert ours.newly_initialised == ()
        return theirs.double().eval(), ours.double()

    return make


def close(ours, theirs, tolerance=1e-8):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1e-3)


def same_gradients(ours, theirs, tolerance=1e-8):
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        expected = torch.cat([reference[n].grad for n in ELECTRA_NAMES.of(name)])
        assert (parameter.grad - expected).abs().max() <= tolerance * expected.abs().max() + 1e-15, name


def random_sizes(seed):
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 3])
    hidden = heads * draw.choice([8, 10, 12])
    return {
        "vocab_size": draw.randrange(30, 120),
        "hidden_size": hidden,
        "embedding_size": draw.choice([hidden, hidden, hidden // 2, hidden + 6]),
        "num_hidden_layers": 1 + seed % 3,
        "num_attention_heads": heads,
        "intermediate_size": draw.randrange(8, 50),
        "max_position_embeddings": 32,
        "type_vocab_size": draw.choice([2, 3]),
        "hidden_act": draw.choice(["gelu", "gelu_new", "relu"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["ElectraForPreTraining", "ElectraForMaskedLM"])
def test_outputs_and_gradients_equal_transformers_packed_and_padded(name, seed, electras, ragged, pack):
    sizes = random_sizes(seed)
    torch.manual_seed(seed)
    theirs, ours = electras(name, sizes)
    ids, types, mask = ragged(4, 17, sizes["vocab_size"])
    real = mask.bool()
    if name == "ElectraForPreTraining":
        labels = (torch.rand(ids.shape) < 0.3).long()
    else:
        labels = torch.where(torch.rand(ids.shape) < 0.4, ids, -100).masked_fill(~real, -100)
        labels[0, 0] = ids[0, 0]
    expected = theirs(ids, mask, types, labels=labels)
    expected.loss.backward()
    output = ours(ids, mask, types, labels=labels)
    assert output.keys() == list(expected.keys())
    close(output.logits[real], expected.logits[real])
    # transformers takes its labels, and with them the loss, as float32.
    tolerance = 1e-6 if name == "ElectraForPreTraining" else 1e-8
    close(output.loss, expected.loss, tolerance)
    output.loss.backward()
    same_gradients(ours, theirs, tolerance)
    ours.zero_grad()
    packed = ours(pack(ids, types, mask), labels=labels[real])
    close(packed.logits, expected.logits[real])
    packed.loss.backward()
    same_gradients(ours, theirs, tolerance)


@pytest.mark.parametrize("widths", [EQUAL, NARROW], ids=["equal", "narrow"])
@pytest.mark.parametrize("name", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_task_classes_equal_transformers(name, widths, electras, sizes, ragged):
    count = {} if name == "QuestionAnswering" else {"num_labels": 3}
    theirs, ours = electras(f"ElectraFor{name}", sizes | widths, **count)
    ids, types, mask = ragged(4, 11, 61)
    expected, output = theirs(ids, mask, types), ours(ids, mask, types)
    real = slice(None) if name == "SequenceClassification" else mask.bool()
    for key in expected.keys():
        close(output[key][real], expected[key][real])
    expected.to_tuple()[0][real].square().sum().backward()
    output[0][real].square().sum().backward()
    same_gradients(ours, theirs)


def test_multiple_choice_equals_transformers(electras, sizes, ragged):
    theirs, ours = electras("ElectraForMultipleChoice", sizes | NARROW)
    ids, types, mask = (values.view(3, 4, 9) for values in ragged(12, 9, 61))
    labels = torch.tensor([3, 0, 1])
    expected, output = theirs(ids, mask, types, labels=labels), ours(ids, mask, types, labels=labels)
    close(output.logits, expected.logits)
    close(output.loss, expected.loss)
    ours.config.summary_type = "mean"
    with pytest.raises(model.ModelError, match="summary_type is 'mean', and multiple choice needs 'first'"):
        model.ElectraForMultipleChoice(ours.config)


def test_the_encoder_alone_and_its_hidden_states_equal_transformers(electras, sizes, ragged):
    theirs, ours = electras("ElectraModel", sizes | NARROW)
    ids, types, mask = ragged(4, 11, 61)
    expected = theirs(ids, mask, types, output_hidden_states=True)
    output = ours(ids, mask, types, output_hidden_states=True)
    assert output.pooler_output is None
    for state, reference in zip(output.hidden_states, expected.hidden_states, strict=True):
        close(state[mask.bool()], reference[mask.bool()])


@pytest.mark.parametrize("name", [
    "ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForSequenceClassification", "ElectraForMultipleChoice",
    "ElectraModel",
])  # fmt: skip
def test_transformers_opens_our_folders_with_no_key_too_many_or_too_few(name, sizes, ragged, tmp_path):
    ours = getattr(model, name)(model.ElectraConfig(**sizes | NARROW)).eval()
    ours.save_pretrained(tmp_path)
    theirs, said = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids, types, mask = ragged(4, 9, 61)
    shape = (2, 2, 9) if name == "ElectraForMultipleChoice" else (4, 9)
    given = [values.view(shape) for values in (ids, mask, types)]
    real = slice(None) if "Classification" in name or "Choice" in name else mask.bool()
    close(ours(*given)[0][real], theirs.eval()(*given)[0][real], 1e-5)


def test_a_config_has_the_defaults_and_the_keys_of_transformers():
    ours, theirs = model.ElectraConfig(), transformers.ElectraConfig()
    for name in vars(ours):
        if name not in ("id2label", "label2id", "classifier_hidden_layers"):
            assert getattr(theirs, name) == getattr(ours, name), name
    values = ours.to_dict("ElectraForPreTraining")
    assert set(values) <= set(theirs.to_dict()) and values["model_type"] == "electra"
    assert model.ElectraConfig.from_dict(json.loads(json.dumps(values))) == ours
    with pytest.raises(model.ModelError, match="embedding_size is 0; give a whole number of at least 1"):
        model.ElectraConfig(embedding_size=0)
    with pytest.raises(model.ModelError, match="model_type is 'bert', and only \"electra\""):
        model.ElectraConfig.from_dict(model.BertConfig().to_dict())


def test_a_folder_of_an_old_release_opens(electras, sizes, tmp_path):
    """As the public ones are: a pickle, position_ids among the weights, both classes' names before the encoder."""
    theirs, _ = electras("ElectraForPreTraining", sizes | NARROW)
    old = tmp_path / "old"
    old.mkdir()
    tensors = {name: tensor.float() for name, tensor in theirs.state_dict().items()}
    tensors["electra.embeddings.position_ids"] = torch.arange(20)[None]
    torch.save(tensors, old / "pytorch_model.bin")
    (old / "config.json").write_text(json.dumps(
        {"architectures": ["ElectraForPreTraining"], "model_type": "electra", "summary_activation": "gelu",
         "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True, **sizes, **NARROW}
    ))  # fmt: skip
    ours = family_of(old).pretraining.from_pretrained(old)
    assert type(ours) is model.ElectraForPreTraining and ours.newly_initialised == ()
    with pytest.warns(UserWarning, match="classifier.dense.weight"):
        head = family_of(old).sequence_classification.from_pretrained(old)
    assert torch.equal(head.bert.embeddings.projection.weight, theirs.electra.embeddings_project.weight.float())
    assert all(name.startswith("classifier.") for name in head.newly_initialised)


def test_an_encoder_with_equal_sizes_is_that_of_a_bert(electras, sizes, ragged, tmp_path):
    theirs, ours = electras("ElectraModel", sizes | EQUAL)
    ours.as_bert().save_pretrained(tmp_path / "bert")
    bert = transformers.BertModel.from_pretrained(tmp_path / "bert", add_pooling_layer=False, dtype=torch.float64)
    ids, types, mask = ragged(4, 11, 61)
    found = bert.eval()(ids, mask, types, output_hidden_states=True).hidden_states
    expected = theirs(ids, mask, types, output_hidden_states=True).hidden_states
    for state, reference in zip(found, expected, strict=True):
        close(state[mask.bool()], reference[mask.bool()])
    with pytest.raises(model.ModelError, match="embedding_size is 10 and hidden_size 24, which are equal in a BERT"):
        model.ElectraModel(model.ElectraConfig(**sizes | NARROW)).as_bert()


def test_a_deep_classifier_opens_here_and_says_to_transformers_that_it_is_another(sizes, ragged, tmp_path):
    config = model.ElectraConfig(**sizes | NARROW, classifier_hidden_layers=2, num_labels=3)
    ours = model.ElectraForSequenceClassification(config).eval()
    ours.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "domain-electra"
    again = family_of(tmp_path).sequence_classification.from_pretrained(tmp_path)
    ids, types, mask = ragged(4, 9, 61)
    assert torch.equal(again(ids, mask, types).logits, ours(ids, mask, types).logits)


@pytest.mark.parametrize(("preset", "width"), [
    ("tiny", 64), ("micro", 64), ("mini", 64), ("small", 128), ("medium", 128), ("base", 192), ("large", 256),
])  # fmt: skip
def test_a_generator_is_as_deep_and_a_quarter_as_wide_as_its_discriminator_with_64_at_least(preset, width):
    config = model.ElectraConfig.from_preset(preset, vocab_size=500)
    made = generator_config(config)
    assert config.embedding_size == config.hidden_size == made.embedding_size
    assert (made.num_hidden_layers, made.hidden_size) == (config.num_hidden_layers, width)
    assert (made.num_attention_heads, made.intermediate_size) == (width // 64, 4 * width)


def pair(sizes, **changes):
    return DiscriminatorAndGenerator(model.ElectraConfig(**sizes | EQUAL | changes))


def test_both_models_share_their_embeddings_and_each_is_optimised_once(sizes):
    both = pair(sizes, hidden_size=128, num_attention_heads=2, embedding_size=128)
    ours, theirs = both.discriminator.bert.embeddings, both.generator.bert.embeddings
    for name in ("word.weight", "position.weight", "token_type.weight", "norm.weight", "norm.bias"):
        assert ours.get_parameter(name) is theirs.get_parameter(name), name
    assert ours.projection is None and tuple(theirs.projection.weight.shape) == (64, 128)
    named = [name for name, _ in both.named_parameters()]
    assert not any(name.startswith("generator.bert.embeddings.word") for name in named)
    own = sum(p.numel() for name, p in both.named_parameters() if name.startswith("discriminator."))
    assert own == model.parameter_count(both.config) == sum(p.numel() for p in both.discriminator.parameters())
    widths = [tuple(matrix.shape)[1] for matrix in both.layer_matrices()]
    assert {64, 128} <= set(widths) and len(widths) == 2 * 2 * 4
    assert both.shape == "2 layers x 128 with a generator of 2 layers x 64"


def test_the_folder_of_both_holds_a_folder_of_each_which_transformers_opens(sizes, tmp_path):
    both = pair(sizes)
    both.save_pretrained(tmp_path)
    again = DiscriminatorAndGenerator.from_pretrained(tmp_path)
    assert again.newly_initialised == () and not again.training
    for (name, expected), (same, found) in zip(both.named_parameters(), again.named_parameters(), strict=True):
        assert name == same and torch.equal(found, expected), name
    assert again.generator.bert.embeddings.word is again.discriminator.bert.embeddings.word
    assert masked_lm_folder(tmp_path) == tmp_path / "generator" == masked_lm_folder(tmp_path / "generator")
    ids = torch.randint(1, 61, (2, 9))
    for folder, name, ours in ((tmp_path, "ElectraForPreTraining", both.discriminator),
                               (tmp_path / "generator", "ElectraForMaskedLM", both.generator)):  # fmt: skip
        theirs, said = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        assert not said["missing_keys"] and not said["unexpected_keys"]
        close(ours.eval()(ids).logits, theirs.eval()(ids).logits, 1e-5)


def test_a_discriminator_without_a_generator_gets_a_fresh_one_and_two_of_other_sizes_are_refused(sizes, tmp_path):
    both = pair(sizes)
    both.discriminator.save_pretrained(tmp_path)
    again = DiscriminatorAndGenerator.from_pretrained(tmp_path)
    assert again.newly_initialised[0] == "generator"
    assert ELECTRA_NAMES.of("mlm_head.dense.weight")[0] in again.newly_initialised
    assert torch.equal(again.generator.bert.embeddings.word.weight, both.bert.embeddings.word.weight)
    other = pair(sizes, max_position_embeddings=30)
    other.generator.save_pretrained(tmp_path / "generator")
    with pytest.raises(model.ModelError, match="generator has a max_position_embeddings of 30, and its discriminator"):
        DiscriminatorAndGenerator.from_pretrained(tmp_path)


def test_a_pair_that_is_made_again_keeps_the_sizes_of_its_generator(sizes):
    both = pair(sizes)
    narrow = both.generator.config.changed(hidden_size=8, num_attention_heads=1)
    both = DiscriminatorAndGenerator(both.config, generator=model.ElectraForMaskedLM(narrow))
    grown = both.remade(vocab_size=70)
    assert grown.generator.config == narrow.changed(vocab_size=70)
    assert [len(rows) for rows in grown.vocabulary_parameters()] == [70, 70]


@torch.no_grad()
@pytest.mark.parametrize(("hidden", "embedded", "num_heads"), [(128, 128, 2), (256, 256, 4), (64, 128, 1)])
def test_both_models_start_by_looking_at_neighbours(hidden, embedded, num_heads, sizes):
    torch.manual_seed(1)
    length = 96
    wide = {"hidden_size": hidden, "embedding_size": embedded, "num_attention_heads": num_heads}
    both = pair(sizes, **wide, max_position_embeddings=length).eval()
    both.look_at_neighbours()
    ids = torch.randint(0, 61, (8, length))
    for ours in (both.discriminator, both.generator):
        (first, *_) = ours(ids, output_attentions=True).attentions
        for head, offset in zip(range(first.shape[1]), (1, -1, 2, -2), strict=False):
            ahead, behind = (first[:, head].diagonal(sign * offset, 1, 2).mean() for sign in (1, -1))
            assert ahead > 2 * behind
            assert ahead > 5 / length


def test_both_names_of_the_family_lead_to_it():
    assert FAMILIES["electra"] is FAMILIES["domain-electra"]


def test_only_the_tensors_of_the_class_are_written(sizes, tmp_path):
    pair(sizes).save_pretrained(tmp_path)
    of_both = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "generator" / "model.safetensors")
    assert not any(name.startswith("generator") for name in of_both[0])
    assert "generator_lm_head.weight" not in of_both[1] and "generator_lm_head.bias" in of_both[1]
    assert not any("discriminator" in name for name in of_both[1])


def test_a_discriminator_without_its_generator_has_no_mlm_head(tmp_path):
    """A discriminator has no MLM head, unless its generator is with it."""
    config = ElectraConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=32, max_position_embeddings=16)  # fmt: skip
    ElectraForPreTraining(config).save_pretrained(tmp_path)
    assert not has_mlm_head(tmp_path)
    (tmp_path / "generator").mkdir()
    (tmp_path / "generator" / "config.json").write_text((tmp_path / "config.json").read_text())
    assert has_mlm_head(tmp_path)
