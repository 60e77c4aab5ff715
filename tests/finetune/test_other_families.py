"""Models that transformers computes: the same numbers as its own classes give, whatever reads them here."""

import json
import re
import resource
import shutil
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from data_prep.errors import UserError
from finetune.batches import BatchMaker, encode_texts
from finetune.predictor import Predictor
from finetune.rows import Example
from finetune.settings import FinetuneSettings
from finetune.tasks.classification import Classification
from finetune.tasks.multiple_choice import MultipleChoice
from finetune.tasks.question_answering import QuestionAnswering
from finetune.tasks.sequences import last_layer
from finetune.tasks.tagging import Tagging
from finetune.tokenizer import open_tokenizer
from finetune.vectors.embedder import Embedder
from model import ModelError, PackedBatch
from model.families import BERT, FAMILIES, WRAPPED, family_of, read_config
from model.wrapped import WrappedForSequenceClassification, rectangles
from model.wrapped_config import WRAPPED_TYPES
from pretrain.engine.checkpoint import save_model_folder

FAMILY_NAMES = ("roberta", "distilbert", "modernbert", "albert", "electra", "xlm-roberta", "camembert", "deberta-v2")
TEXTS = ["The rate of the heart, don't stop.", "café", "mask 7 8 9 the patient's rates go " * 2, "number: 1."]
PAIRS = [(text, TEXTS[number * 3 % 4]) for number, text in enumerate(TEXTS)]


@pytest.fixture(autouse=True)
def computed_by_transformers(monkeypatch):
    """Also those that have classes of this project."""
    for kind in WRAPPED_TYPES:
        monkeypatch.delitem(FAMILIES, kind, raising=False)


@pytest.fixture(params=[*FAMILY_NAMES[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILY_NAMES[4:])])
def folder(request, other_encoder):
    return other_encoder(request.param)


def saved(task, folder, out, **options):
    """A fresh model for the task, in a folder with its tokenizer."""
    model = task.build_model(FinetuneSettings(model=str(folder), **options), seed=3)
    save_model_folder(model, open_tokenizer(folder), out)
    return model


def by_transformers(folder, kind, texts, tokenizer=None, **options):
    import transformers

    tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, f"AutoModel{kind}").from_pretrained(folder).eval()
    first, *second = ([text for text, _ in texts], [text for _, text in texts]) if isinstance(texts[0], tuple) else (
        texts,)  # fmt: skip
    given = tokenizer(first, *second, padding=True, truncation=True, max_length=48, return_tensors="pt", **options)
    return model, given


@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_logits_and_gradients_are_those_of_transformers(folder, texts, tmp_path):
    task = Classification(["a", "b", "c"])
    ours = saved(task, folder, tmp_path, dropout=0.0).eval()
    model, given = by_transformers(tmp_path, "ForSequenceClassification", texts)
    labels = torch.arange(4) % 3
    theirs = model(**given, labels=labels)
    theirs.loss.backward()
    rows = [text if isinstance(text, tuple) else (text, None) for text in texts]
    tokenizer = open_tokenizer(tmp_path)
    encoded = encode_texts(rows, labels.numpy(), tokenizer, 48, "head")
    batch = BatchMaker(encoded, tokenizer, 10**6).packed(np.arange(4))
    logits = ours(batch).logits
    torch.testing.assert_close(logits, theirs.logits, rtol=1e-5, atol=1e-5)
    torch.nn.functional.cross_entropy(logits, batch.labels).backward()
    gradients = {name.removeprefix("theirs."): p.grad for name, p in ours.named_parameters() if p.grad is not None}
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max() + 1))
    # The same one by one: the sequences of a batch know nothing of each other, nor of padding.
    alone = torch.cat([ours(BatchMaker(encoded, tokenizer, 1).packed(np.array([n]))).logits for n in range(4)])
    torch.testing.assert_close(alone, logits, rtol=1e-4, atol=1e-5)


def test_tags_are_read_at_the_words_of_transformers(folder, tmp_path):
    task = Tagging(["O", "B-x", "I-x"])
    ours = saved(task, folder, tmp_path, dropout=0.0).eval()
    words = ["The", "rate", "café", "don't", "stop,", "7", "mask."]
    example = task.example("", {"tokens": words, "tags": ["O"] * 7}, _columns("tokens", "tags"))
    tokenizer = open_tokenizer(tmp_path)
    encoded = task.encode([example], tokenizer, 48, "windows")
    batch = BatchMaker(encoded, tokenizer, 10**6).packed(np.array([0]))
    model, given = by_transformers(tmp_path, "ForTokenClassification", [" ".join(words)], return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")[0].tolist()
    text, starts = " ".join(words), [start for start, _ in example.words]
    trimmed = [start + len(re.match(r"\s*", text[start:end])[0]) for start, end in offsets]
    places = [next(n for n, at in enumerate(trimmed) if at == start and 0 < n < len(offsets) - 1) for start in starts]
    assert batch.places.tolist() == places and batch.input_ids.tolist() == given["input_ids"][0].tolist()
    with torch.no_grad():
        expected = model(**given).logits[0, places]
        torch.testing.assert_close(ours.logits_at(batch, batch.places), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_gradients_of_tags_are_those_of_transformers_beside_padding(kind, other_encoder, tmp_path):
    task = Tagging(["O", "B-x", "I-x"])
    ours = saved(task, other_encoder(kind), tmp_path, dropout=0.0).eval()
    texts = ["The rate", "café of the heart, stop", "7"]
    rows = [{"tokens": text.split(), "tags": ["O", "B-x", "I-x", "O", "O"][: len(text.split())]} for text in texts]
    examples = [task.example("", row, _columns("tokens", "tags")) for row in rows]
    tokenizer = open_tokenizer(tmp_path)
    batch = BatchMaker(task.encode(examples, tokenizer, 48, "windows"), tokenizer, 10**6).packed(np.arange(3))
    model, given = by_transformers(tmp_path, "ForTokenClassification", texts)
    assert len(set(given["attention_mask"].sum(1).tolist())) == 3
    # Of every token, [CLS] too: what is laid out in padding is read nowhere.
    (model(**given).logits * given["attention_mask"][..., None]).square().sum().backward()
    ours.logits_at(batch, torch.arange(batch.num_tokens)).square().sum().backward()
    for name, parameter in model.named_parameters():
        gradient = ours.get_parameter(f"theirs.{name}").grad
        limit = 1e-5 * float(parameter.grad.abs().max() + 1)
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=limit)


def test_starts_and_ends_of_answers_are_those_of_transformers(folder, tmp_path):
    task = QuestionAnswering()
    ours = saved(task, folder, tmp_path, dropout=0.0).eval()
    question, context = "which rate?", "The rate of the heart, don't stop 7 8."
    example = Example("", question, context, ((4, 8),))
    tokenizer = open_tokenizer(tmp_path)
    encoded = task.encode([example], tokenizer, 48, "windows")
    batch = BatchMaker(encoded, tokenizer, 10**6).packed(np.array([0]))
    model, given = by_transformers(tmp_path, "ForQuestionAnswering", [(question, context)], return_offsets_mapping=True)
    offsets, of = given.pop("offset_mapping")[0].tolist(), given.sequence_ids(0)
    of_context = [place for place, kind in enumerate(of) if kind == 1]
    assert batch.input_ids.tolist() == given["input_ids"][0].tolist()
    assert batch.places.tolist() == [0, *of_context]
    at = int(encoded.sequences.b_start[0])
    found = encoded.characters[at : at + len(of_context)].tolist()
    assert [context[a:b].strip() for a, b in found] == [
        context[a:b].strip() for a, b in (offsets[n] for n in of_context)
    ]
    with torch.no_grad():
        theirs, logits = model(**given), ours.logits_at(batch, batch.places)
        both = torch.stack([theirs.start_logits[0], theirs.end_logits[0]], dim=1)[batch.places]
    torch.testing.assert_close(logits, both, rtol=1e-5, atol=1e-5)
    first, last = (int(column.argmax()) - 1 for column in encoded.targets.T)
    start, end = found[first][0], found[last][1]
    assert start <= 4 and end >= 8 and "rate" in context[start:end]


def test_scores_of_choices_are_those_of_transformers(folder, tmp_path):
    task = MultipleChoice()
    ours = saved(task, folder, tmp_path, dropout=0.0).eval()
    example = Example("", "the rate", choices=("of the heart", "mask", "7 8 stop"))
    tokenizer = open_tokenizer(tmp_path)
    encoded = task.encode([example], tokenizer, 48, "head")
    batch = BatchMaker(encoded, tokenizer, 10**6).packed(np.arange(3))
    pairs = [(example.text, choice) for choice in example.choices]
    model, given = by_transformers(tmp_path, "ForMultipleChoice", pairs)
    with torch.no_grad():
        theirs = model(**{name: values[None] for name, values in given.items()}).logits[0]
        torch.testing.assert_close(ours(batch).logits[:, 0], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [-1, 1, 0])
def test_vectors_are_those_of_transformers(folder, layer):
    embedder = Embedder(folder, device="cpu", layer=layer)
    model, given = by_transformers(folder, "", TEXTS)
    with torch.no_grad():
        states = model(**given, output_hidden_states=True)
    hidden = states.last_hidden_state if layer == -1 else states.hidden_states[layer]
    mask = given["attention_mask"][..., None]
    expected = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    assert np.abs(embedder.embed(TEXTS) - expected).max() < 1e-5


SPACED = ["  heart rate\tdon't\nstop", "The rate, café", "\u00a0the\n\n rate don't"]


def test_vectors_of_words_are_the_means_of_their_pieces_in_transformers(folder):
    """As many as there are words; a token of white space is in none of them, and one of two words in both."""
    found = Embedder(folder, device="cpu").embed_words(SPACED)
    shared = alone = 0
    for text, words in zip(SPACED, found, strict=True):
        assert words["words"] == re.findall(r"\w+|[^\w\s]", text)
        model, given = by_transformers(folder, "", [text], return_offsets_mapping=True)
        letters = [
            [place for place in range(start, end) if not text[place].isspace()]
            for start, end in given.pop("offset_mapping")[0].tolist()
        ]
        with torch.no_grad():
            states = model(**given).last_hidden_state[0]
        for start, end, vector in zip(words["start"], words["end"], words["vectors"], strict=True):
            own = [n for n, places in enumerate(letters) if places and start <= places[0] < end]
            pieces = own or [n for n, places in enumerate(letters) if start in places]
            np.testing.assert_allclose(vector, states[pieces].mean(0), atol=1e-5)
            shared += not own
        alone += sum(not places for places in letters[1:-1])
    if folder.name == "a-roberta":
        assert shared and alone, "no word shares a piece, or no token is white space: this proves nothing"


def test_every_parameter_has_its_depth_and_the_frozen_ones_are_those_of_the_encoder(folder):
    model = Classification(["a", "b"]).build_model(FinetuneSettings(model=str(folder)), 1)
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    number = model.config.num_stored_layers
    assert {layer for layer in layers.values() if layer} == set(range(1, number + 1))
    for name, layer in layers.items():
        said = re.search(r"layer(?:s|_groups)?\.(\d+)\.", name)
        is_head = not name.startswith(f"theirs.{model.theirs.base_model_prefix}.") or ".pooler." in name
        assert (layer == 1 + int(said[1])) if said else (layer is None) == is_head, name
    matrices = {id(p) for p in model.layer_matrices()}
    inside = {id(p) for name, p in model.named_parameters() if layers[name] and p.dim() == 2}
    assert matrices == inside and matrices
    model.freeze_encoder()
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        name for name, layer in layers.items() if layer is None
    }
    assert isinstance(last_layer(model), torch.nn.Linear) and last_layer(model).out_features == 2


def test_the_depth_of_a_parameter_is_the_first_layer_whose_output_it_acts_on(folder):
    model = Classification(["a", "b"]).build_model(FinetuneSettings(model=str(folder)), 1).eval()
    encoder = model.theirs.base_model
    found = encoder(input_ids=torch.arange(5, 17)[None], output_hidden_states=True)
    states = [*found.hidden_states[:-1], found.last_hidden_state]
    parameters = {name: p for name, p in model.named_parameters() if model.layer_of(name) is not None}
    first: dict[str, int] = {}
    for number, state in enumerate(states):
        loss = (state * torch.randn(state.shape)).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        first |= {n: number for n, g in zip(parameters, gradients, strict=True) if g is not None and n not in first}
    for name, number in first.items():
        # Relative positions and shared projections stand below the layers, and act inside them.
        assert model.layer_of(name) in ({0} if number == 0 else {0, 1} if number == 1 else {number}), name


def test_a_long_text_among_short_ones_makes_no_rows_as_long_of_them(folder, tmp_path, monkeypatch):
    texts = ["a rate", "the heart", "café", "7 8"] * 5 + ["mask 7 8 9 the patient's rates go " * 3]
    ours = saved(Classification(["a", "b", "c"]), folder, tmp_path).eval()
    model, given = by_transformers(tmp_path, "ForSequenceClassification", texts)
    tokenizer = open_tokenizer(tmp_path)
    encoded = encode_texts([(text, None) for text in texts], np.zeros(21, int), tokenizer, 48, "head")
    batch, computed = BatchMaker(encoded, tokenizer, 10**6).packed(np.arange(21)), []
    read = ours._outputs
    monkeypatch.setattr(ours, "_outputs", lambda part, *more: computed.append(part) or read(part, *more))
    with torch.no_grad():
        torch.testing.assert_close(ours(batch).logits, model(**given).logits, rtol=1e-5, atol=1e-5)
    slots = sum(part.num_sequences * part.max_sequence_length for part in computed)
    assert slots <= 2 * batch.num_tokens < batch.num_sequences * batch.max_sequence_length


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_parts_of_a_batch_are_all_of_it_and_have_no_more_padding_than_tokens(lengths):
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    ids = torch.arange(int(starts[-1]))
    positions = torch.cat([torch.arange(length) for length in lengths])
    parts = rectangles(PackedBatch(ids, ids % 2, positions, starts, max(lengths)))
    assert torch.equal(torch.cat([part.input_ids for part in parts]), ids)
    assert torch.equal(torch.cat([part.token_type_ids for part in parts]), ids % 2)
    assert torch.equal(torch.cat([part.position_ids for part in parts]), positions)
    assert [length for part in parts for length in part.sequence_starts.diff().tolist()] == lengths
    for part in parts:
        assert part.max_sequence_length == part.sequence_starts.diff().max()
        assert part.num_sequences * part.max_sequence_length <= 2 * part.num_tokens


def test_dropout_is_everywhere_as_it_is_asked_for(folder):
    model = Classification(["a", "b"]).build_model(FinetuneSettings(model=str(folder), dropout=0.25), 1)
    found = {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)}
    assert found == {0.25}


def test_a_new_head_is_that_of_the_seed_and_the_encoder_that_of_the_folder(folder, tmp_path):
    task = Classification(["a", "b"])
    first, again, other = (task.build_model(FinetuneSettings(model=str(folder)), seed) for seed in (1, 1, 2))
    inside = f"theirs.{first.theirs.base_model_prefix}."
    differ = False
    for (name, a), (_, b), (_, c) in zip(*(m.named_parameters() for m in (first, again, other)), strict=True):
        assert torch.equal(a, b), name
        differ |= not torch.equal(a, c)
        assert not name.startswith(inside) or "pooler" in name or torch.equal(a, c), name
    assert differ
    # A head that was trained for a task is not gone on with, whatever its size; opened as it is, it is there.
    save_model_folder(first, open_tokenizer(folder), tmp_path)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
    new = task.build_model(FinetuneSettings(model=str(tmp_path)), 2)
    assert not torch.equal(last_layer(new).weight, last_layer(first).weight)
    assert torch.equal(last_layer(task.open_model(tmp_path)).weight, last_layer(first).weight)
    wider = Classification(["a", "b", "c"]).build_model(FinetuneSettings(model=str(tmp_path)), 2)
    assert last_layer(wider).out_features == 3
    scratch = task.build_model(FinetuneSettings(model=str(folder), from_scratch=True), 1)
    assert not torch.equal(scratch.layer_matrices()[0], first.layer_matrices()[0])


@pytest.mark.parametrize("architectures", [None, [], ["RobertaForSentiment"]])
def test_a_head_of_a_class_that_nobody_knows_is_not_gone_on_with(other_encoder, tmp_path, architectures):
    task = Classification(["a", "b"])
    folder = other_encoder("roberta")
    first, other = (task.build_model(FinetuneSettings(model=str(folder)), seed) for seed in (1, 2))
    save_model_folder(first, open_tokenizer(folder), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": architectures}))
    new = task.build_model(FinetuneSettings(model=str(tmp_path)), 2)
    assert not torch.equal(last_layer(new).weight, last_layer(first).weight)
    assert torch.equal(last_layer(new).weight, last_layer(other).weight)


def test_classes_of_this_project_go_first_where_the_tokenizer_is_wordpiece(other_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "albert", BERT)
    folder = shutil.copytree(other_encoder("albert"), tmp_path / "albert")
    assert family_of(folder) is WRAPPED
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "model": {"type": "WordPiece"}}))
    assert family_of(folder) is BERT
    (folder / "spiece.model").touch()
    (folder / "tokenizer.json").unlink()
    assert family_of(folder) is WRAPPED


def test_the_positions_of_padding_are_not_counted(other_encoder):
    assert [read_config(other_encoder(kind)).max_position_embeddings for kind in FAMILY_NAMES] == [48] * 8


@pytest.fixture
def copied(other_encoder, tmp_path):
    """(changes to config.json) -> a copy of a RoBERTa."""

    def copy(**changes):
        folder = tmp_path / "copy"
        shutil.copytree(other_encoder("roberta"), folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return folder

    return copy


def opened(folder):
    return WrappedForSequenceClassification.from_pretrained(folder, new_head=True)


@pytest.mark.parametrize(("changes", "words"), [
    ({"num_hidden_layers": 3}, "lacks"), ({"num_hidden_layers": 1}, "more than"), ({"hidden_size": 64}, "lacks"),
    ({"is_decoder": True}, "is_decoder"), ({"quantization_config": {"a": 1}}, "quantization_config"),
    ({"hidden_act": "os.system"}, "transformers cannot make a RobertaForSequenceClassification"),
    ({"hidden_size": "many"}, "hidden_size"), ({"pad_token_id": None}, "pad_token_id is no number, and positions"),
])  # fmt: skip
def test_a_config_that_does_not_fit_is_refused(copied, changes, words):
    with pytest.raises(ModelError, match=words):
        opened(copied(**changes))


def test_sizes_are_compared_before_memory_is_taken(copied):
    folder = copied(vocab_size=8_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=r"numbers, and config\.json asks for .*do not belong together"):
        opened(folder)
    # Kilobytes; the embedding would take over a gigabyte.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_pickle_is_not_opened(copied):
    folder = copied()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        opened(folder)


def test_code_in_a_folder_is_not_run(copied):
    folder = copied(auto_map={kind: "bad.Bad" for kind in ("AutoConfig", "AutoModelForSequenceClassification")})
    (folder / "bad.py").write_text("raise SystemExit('it ran')")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["bad.Bad", "bad.Bad"]}}))
    assert opened(folder).config.num_labels == 2
    try:
        assert open_tokenizer(folder).encode(["the"])
    except UserError as error:
        assert "cannot open the tokenizer" in str(error)


def test_a_sequence_that_is_too_long_is_refused(other_encoder, tmp_path):
    saved(Classification(["a", "b"]), other_encoder("roberta"), tmp_path)
    predictor = Predictor(tmp_path, device="cpu")
    encoded = encode_texts([("the heart " * 60, None)], np.zeros(1), predictor.tokenizer, 60, "head")
    batch = BatchMaker(encoded, predictor.tokenizer, 10**6).packed(np.array([0]))
    with pytest.raises(ModelError, match="60 tokens is longer than the 48"):
        predictor.model(batch)


def _columns(text, label):
    from finetune.rows import Columns

    return Columns((text,), label)


@pytest.mark.parametrize("new_head", [False, True])
def test_an_encoder_has_no_pooler_that_would_be_new(other_encoder, tmp_path, new_head):
    folder = shutil.copytree(other_encoder("roberta"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    kept = {name: each for name, each in tensors.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = family_of(folder).encoder.from_pretrained(folder, new_head=new_head)
    assert model.theirs.pooler is None and model.newly_initialised == ()
