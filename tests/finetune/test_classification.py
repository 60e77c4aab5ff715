"""Columns, labels and bad rows; the loss against transformers and scikit-learn."""

import copy
import json
import math
import unicodedata

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from transformers import AutoTokenizer
from transformers import BertForSequenceClassification as TheirClassifier

from data_prep.errors import PrepError
from finetune.batches import BatchMaker, TextStream, encode, encode_texts
from finetune.columns import columns_of_file, find_columns
from finetune.finetuning import warn_of_unknown
from finetune.rows import BadRows, Columns, Example, read_rows, table_rows
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks.classification import Classification, ClassificationObjective, balanced_weights, label_names
from finetune.tasks.sequences import class_name, labels_of
from model import BertConfig, BertForPreTraining
from pretrain.engine.batches import Batches, Position
from pretrain.engine.distributed import World
from pretrain.engine.settings import LoopSettings
from pretrain.engine.step import Learner, step

LABELS = ["calm", "loud", "none"]
TASK = Classification()
pytestmark = pytest.mark.usefixtures("one_thread")


def built(folder, labels, seed, dropout, **changes):
    settings = FinetuneSettings(model=str(folder), dropout=dropout, **changes)
    return Classification(labels).build_model(settings, seed)


def encoded_of(examples, labels, tokenizer, length, long_text):
    return encode(examples, Classification(labels).targets(examples), tokenizer, length, long_text)


def objective_of(encoded, balanced):
    settings = FinetuneSettings(class_weights="balanced" if balanced else "none")
    return Classification(LABELS).objective(encoded, settings)


def columns_of(names, texts=(), label=None, labelled=True, **values):
    rows, named = [dict.fromkeys(names, "words") | values], Columns(tuple(texts), label)
    return find_columns(TASK, "rows.csv", rows, named, labelled=labelled)


# --- columns


@pytest.mark.parametrize(
    ("names", "texts", "label"),
    [
        (["text", "label"], ("text",), "label"),
        (["id", "Sentence", "LABEL"], ("Sentence",), "LABEL"),
        (["body", "text", "category", "label"], ("text",), "label"),
        (["premise", "hypothesis", "target"], ("premise", "hypothesis"), "target"),
        (["text_b", "label", "text_a", "text"], ("text_a", "text_b"), "label"),
        (["Question1", "question2", "class"], ("Question1", "question2"), "class"),
        (["premise", "remark", "text", "label"], ("text",), "label"),
        (["remark", "labels"], ("remark",), "labels"),
    ],
)
def test_usual_columns_are_found(names, texts, label):
    assert columns_of(names) == Columns(texts, label)


def test_the_only_column_of_text_is_found_among_numbers():
    assert columns_of(["id", "remark", "label"], id=7) == Columns(("remark",), "label")
    assert columns_of(["id", "remark"], id=7, labelled=False) == Columns(("remark",), None)


def test_named_columns_are_taken():
    names = ["text", "notes", "label", "ward"]
    assert columns_of(names, ("notes",), "ward") == Columns(("notes",), "ward")
    assert columns_of(names, ("notes", "text")) == Columns(("notes", "text"), "label")
    assert columns_of(names, label="ward") == Columns(("text",), "ward")


@pytest.mark.parametrize(
    ("names", "label", "texts"),
    [
        (["question", "passage", "answer"], "answer", None),
        (["content", "body"], "content", ("body",)),
        (["question", "passage", "text", "answer"], "answer", ("text",)),
    ],
)
def test_the_column_of_labels_is_no_text(names, label, texts):
    if texts:
        assert columns_of(names, label=label).texts == texts
    else:
        with pytest.raises(FinetuneError, match="cannot be told by its name"):
            columns_of(names, label=label)


@pytest.mark.parametrize(
    ("names", "texts", "label", "words"),
    [
        (["remark", "notes", "label"], (), None, ["rows.csv", "remark, notes, label", "--text-column"]),
        (["label"], (), None, ["--text-column"]),
        (["text", "ward"], (), None, ["no column of labels", "text, ward", "--label-column"]),
        (["text", "label"], ("txet",), None, ['"txet"', "--text-column text"]),
        (["text", "category"], (), "catgory", ['"catgory"', "--label-column category"]),
    ],
)
def test_columns_that_cannot_be_told(names, texts, label, words):
    with pytest.raises(FinetuneError) as error:
        columns_of(names, texts, label)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("rows", [[], [{}, {}]])
def test_a_file_without_rows_or_columns_is_refused(write_rows, rows):
    path = write_rows(rows)
    for texts in ((), ("text",)):
        with pytest.raises(FinetuneError, match="has no rows"):
            columns_of_file(TASK, path, "utf-8", Columns(texts))


def test_columns_of_a_file(write_rows):
    path = write_rows([{"Text": "a", "class": 1}])
    assert columns_of_file(TASK, path, "utf-8", Columns()) == Columns(("Text",), "class")
    with pytest.raises(PrepError, match="utf8"):
        columns_of_file(TASK, path, "utf88", Columns())


# --- labels


@pytest.mark.parametrize(
    ("value", "name"),
    [("pos", "pos"), (" pos ", "pos"), (0, "0"), (-3, "-3"), (1.0, "1"), (0.0, "0"), (True, "True"), ("1.5", "1.5")],
)
def test_words_and_whole_numbers_are_labels(value, name):
    assert TASK.label_of({"label": value}, "label") == name


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, 'has no "label"'), (math.nan, 'has no "label"'), ("", 'has no "label"'), (" \t", 'has no "label"'),
        (1.5, "a fraction"), (math.inf, "an infinite number"), ([1], "a list"), ({"a": 1}, "not a class"),
    ],
)  # fmt: skip
def test_what_is_no_label(value, problem):
    with pytest.raises(ValueError, match=problem):
        TASK.label_of({"label": value}, "label")
    with pytest.raises(ValueError, match='has no "label"'):
        TASK.label_of({}, "label")


def examples_of(*labels):
    return [Example(f"rows:{number}", f"text {number}", None, label) for number, label in enumerate(labels)]


def test_labels_are_ordered_by_value_or_alphabet():
    assert label_names(examples_of("10", "9", "-1", "9")) == ["-1", "9", "10"]
    assert label_names(examples_of("10", "9", "x")) == ["10", "9", "x"]
    assert label_names(examples_of("b", "a", "B")) == ["B", "a", "b"]
    equal = ["1", "01", "001", "0001", "00001", "000001"]
    assert label_names(examples_of(*equal)) == sorted(equal)


@pytest.mark.parametrize(("labels", "words"), [([], "no usable row"), (["a", "a"], "only one label, 'a'")])
def test_one_class_is_refused(labels, words):
    with pytest.raises(FinetuneError, match=words):
        label_names(examples_of(*labels))


def test_unknown_labels_are_bad_rows():
    rows = examples_of("a", "c", "b")
    with pytest.raises(FinetuneError, match=r"rows:1 has the label 'c'.*\(a, b\)"):
        list(Classification(["a", "b"]).usable(rows, BadRows(skip=False), True))
    bad = BadRows(skip=True)
    assert list(Classification(["a", "b"]).usable(rows, bad, True)) == [rows[0], rows[2]] and bad.count == 1


# --- rows

BAD = [
    ({"label": "a"}, 'has no "text"'),
    ({"text": None, "label": "a"}, 'has no "text"'),
    ({"text": " \n", "label": "a"}, 'has an empty "text"'),
    ({"text": "\ufeff\u200b\x01 ", "label": "a"}, 'has an empty "text"'),
    ({"text": 5, "label": "a"}, "is not text"),
    ({"text": ["x"], "label": "a"}, "is not text"),
    ({"text": "x", "label": None}, 'has no "label"'),
    ({"text": "x", "label": 0.5}, "not a class"),
]


@pytest.mark.parametrize(("row", "problem"), BAD)
def test_a_bad_row_is_refused_with_its_place(write_rows, row, problem):
    path = write_rows([{"text": "one", "label": "a"}, {"text": "two", "label": "b"}, row])
    with pytest.raises(FinetuneError) as error:
        list(read_rows(TASK, path, "utf-8", Columns(("text",), "label"), BadRows(skip=False)))
    message = str(error.value)
    assert message.startswith("train.jsonl:3 ") and problem in message and "--skip-bad-rows" in message


def test_bad_rows_are_skipped_and_counted(write_rows, capsys):
    path = write_rows([{"text": "one", "label": 1}, *(row for row, _ in BAD), {"text": "two", "label": 2.0}])
    bad = BadRows(skip=True)
    rows = list(read_rows(TASK, path, "utf-8", Columns(("text",), "label"), bad))
    assert rows == [Example("train.jsonl:1", "one", None, "1"), Example("train.jsonl:10", "two", None, "2")]
    bad.report()
    assert capsys.readouterr().out == 'Bad rows skipped: 8 (the first: train.jsonl:2 has no "text").\n'


def test_no_bad_row_is_no_sentence(capsys):
    BadRows(skip=True).report()
    assert capsys.readouterr().out == ""


def test_pairs_keep_their_order_and_need_both_texts(write_rows):
    path = write_rows([{"b": "second", "a": "first", "label": "x"}, {"a": "first", "b": "", "label": "x"}])
    bad = BadRows(skip=True)
    assert list(read_rows(TASK, path, "utf-8", Columns(("a", "b"), None), bad)) == [
        Example("train.jsonl:1", "first", "second", None)
    ]
    assert bad.count == 1


def test_plain_text_has_no_columns(tmp_path):
    (tmp_path / "texts.txt").write_text("a\n")
    with pytest.raises(FinetuneError, match=r"texts\.txt is plain text without columns"):
        list(table_rows(str(tmp_path / "texts.txt"), "utf-8"))


# --- model


def test_the_head_is_new_and_the_encoder_is_not(encoder):
    models = [built(encoder, LABELS, seed, 0.25) for seed in (1, 1, 2)]
    pretrained = BertForPreTraining.from_pretrained(encoder).bert.state_dict()
    for model in models:
        assert all(torch.equal(value, pretrained[name]) for name, value in model.bert.state_dict().items())
    heads = [model.classifier.linear.weight for model in models]
    assert torch.equal(heads[0], heads[1]) and not torch.isclose(heads[0], heads[2]).any()
    config = models[0].config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.25)
    assert models[0].classifier.dropout.p == 0.25
    assert config.id2label == dict(enumerate(LABELS)) and heads[0].shape == (3, 32)


def test_a_classifier_is_started_from_with_a_new_head(encoder, tmp_path):
    first = built(encoder, LABELS, 1, 0.0)
    first.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"classifier_dropout": 0.4}))
    same_size = built(tmp_path, LABELS, 2, 0.0)
    assert not torch.isclose(same_size.classifier.linear.weight, first.classifier.linear.weight).any()
    larger = built(tmp_path, [*LABELS, "more"], 1, 0.0)
    assert larger.classifier.linear.weight.shape == (4, 32)
    deeper = built(tmp_path, LABELS, 1, 0.0, hidden_layers=2)
    assert deeper.classifier.output.weight.shape == (3, 32) and len(deeper.classifier.hidden) == 2
    for again in (same_size, larger, deeper):
        assert torch.equal(again.bert.embeddings.word.weight, first.bert.embeddings.word.weight)
        # The dropout that is asked for is that of the head too.
        assert again.classifier.dropout.p == 0 and again.config.classifier_dropout is None


def test_from_scratch_keeps_nothing_but_the_shape(encoder):
    pretrained = BertForPreTraining.from_pretrained(encoder).bert
    scratch = built(encoder, LABELS, 1, 0.0, from_scratch=True)
    for (name, ours), theirs in zip(scratch.bert.named_parameters(), pretrained.parameters(), strict=True):
        assert ours.shape == theirs.shape
        if ours.dim() == 2:
            assert not torch.isclose(ours, theirs, rtol=1e-6).all(1).any(), name


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FinetuneError, match=r"config\.json"):
        built(tmp_path, LABELS, 1, 0.0)


# --- objective

TEXTS = ["heart rate", "the patient was stable " * 3, "mask 1 2 3", "7", "of of of of of", "patient stable a b"] * 3
EXAMPLES = [Example(f"t:{i}", text, "the heart" if i % 2 else None, LABELS[i % 5 % 3]) for i, text in enumerate(TEXTS)]


@pytest.fixture
def classifier(encoder):
    return built(encoder, LABELS, 1, 0.0)


def learner_of(model, objective):
    settings = LoopSettings(optimizer="adamw", learning_rate=1e-3, clip_norm=1e6, precision="fp32", device="cpu")
    return Learner(settings, model, objective, seed=1)


def one_step(model, encoded, tokenizer, tokens=10**9, balanced=False):
    """(mean loss, norm of its gradient) of one step on all texts."""
    maker, stream = BatchMaker(encoded, tokenizer, tokens), TextStream(encoded, 1)
    batches = Batches(stream, maker, encoded.num_texts, Position(), World())
    batches.draw()
    assert tokens == 10**9 or len(batches.micro_batches()) > 1
    objective = objective_of(encoded, balanced)
    outcome = step(learner_of(copy.deepcopy(model), objective), batches)
    return outcome.losses["label"], outcome.norm


def test_the_loss_and_its_gradient_are_those_of_transformers(encoder, classifier, small_tokenizer, tmp_path):
    classifier.save_pretrained(tmp_path)
    theirs = TheirClassifier.from_pretrained(tmp_path).eval()
    # Rows that transformers pads and cuts by itself: singles and pairs one after the other.
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = [tokenizer(e.text, e.text_pair, truncation=True, max_length=12) for e in EXAMPLES]
    labels = torch.tensor([LABELS.index(e.label) for e in EXAMPLES])
    expected = theirs(**tokenizer.pad(rows, return_tensors="pt"), labels=labels).loss
    expected.backward()
    expected = float(expected.detach())
    norm = float(torch.stack([p.grad.norm() for p in theirs.parameters()]).norm())
    encoded = encoded_of(EXAMPLES, LABELS, small_tokenizer, 12, "head")
    assert encoded.num_cut
    for tokens in (10**9, 60, 1):
        found = one_step(classifier, encoded, small_tokenizer, tokens)
        assert found == pytest.approx((expected, norm), rel=1e-4), tokens


def test_class_weights_are_those_of_scikit_learn(small_tokenizer):
    gold = Classification(LABELS).targets(EXAMPLES)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=gold)
    assert len(set(expected)) > 1
    encoded = encoded_of(EXAMPLES, LABELS, small_tokenizer, 9, "windows")
    assert len(encoded.sequences) > len(EXAMPLES)
    assert objective_of(encoded, balanced=True).class_weights.numpy() == pytest.approx(expected, rel=1e-6)
    assert objective_of(encoded, balanced=False).class_weights is None
    assert balanced_weights(np.array([0, 2, 2]), 4).tolist() == [0.75, 0, 0.375, 0]


def losses_one_by_one(model, examples, tokenizer, length, mode):
    """The mean loss over each text's windows."""
    found = []
    for example in examples:
        encoded = encoded_of([example], LABELS, tokenizer, length, mode)
        maker = BatchMaker(encoded, tokenizer, 10**9)
        with torch.no_grad():
            logits = model.eval()(maker.packed(np.arange(len(encoded.sequences)))).logits
        target = torch.full((len(logits),), LABELS.index(example.label))
        found.append(float(F.cross_entropy(logits, target)))
    return np.array(found)


def test_balanced_classes_weigh_their_texts(classifier, small_tokenizer):
    encoded = encoded_of(EXAMPLES, LABELS, small_tokenizer, 48, "head")
    gold = encoded.targets
    each = losses_one_by_one(classifier, EXAMPLES, small_tokenizer, 48, "head")
    weights = compute_class_weight("balanced", classes=np.arange(3), y=gold)[gold]
    loss, _ = one_step(classifier, encoded, small_tokenizer, 60, balanced=True)
    assert loss == pytest.approx((weights * each).mean(), rel=1e-5)
    assert abs(loss - each.mean()) > 1e-3


@pytest.mark.parametrize("tokens", [10**9, 20])
def test_a_text_with_many_windows_counts_as_much_as_one_with_one(classifier, small_tokenizer, tokens):
    examples = [Example("t:1", "heart " * 30, None, "calm"), Example("t:2", "7 8", None, "loud")]
    encoded = encoded_of(examples, LABELS, small_tokenizer, 10, "windows")
    assert np.bincount(encoded.text).tolist() == [5, 1]
    each = losses_one_by_one(classifier, examples, small_tokenizer, 10, "windows")
    loss, _ = one_step(classifier, encoded, small_tokenizer, tokens)
    assert loss == pytest.approx(each.mean(), rel=1e-5)
    batches = BatchMaker(encoded, small_tokenizer, tokens).micro_batches(np.arange(2))
    counts = [ClassificationObjective().counts(batch)["label"] for batch in batches]
    assert sum(counts) == pytest.approx(2) and abs(each[0] - each[1]) > 1e-3


def test_the_most_probable_class_is_named():
    outputs = np.array([[0.1, 0.7, 0.2], [0.6, 0.2, 0.2]])
    found = [Classification(LABELS).prediction(row, EXAMPLES[0]) for row in outputs]
    assert [row["predicted_label"] for row in found] == ["loud", "calm"]


def test_a_label_is_doubted_as_much_as_it_is_improbable():
    doubts = [Classification(LABELS).doubt(np.int64(label), np.array([0.1, 0.7, 0.2])) for label in range(3)]
    assert doubts == pytest.approx([0.9, 0.3, 0.8])


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_of_classes_are_the_same_in_both_forms_of_unicode(form):
    name = unicodedata.normalize(form, "Tích cực")
    assert class_name(f" {name}  x", "label") == unicodedata.normalize("NFC", "Tích cực x")
    assert labels_of(BertConfig(id2label={0: name, 1: "other"})) == [unicodedata.normalize("NFC", name), "other"]


@pytest.mark.parametrize(("share", "says"), [(0.04, False), (0.5, True)])
def test_texts_that_the_vocabulary_lacks_are_told(small_tokenizer, capsys, share, says):
    many = round(100 * share)
    texts = [("heart " * (100 - many) + "ж " * many, None)]
    warn_of_unknown("test", encode_texts(texts, np.zeros(1), small_tokenizer, 512, "head"), small_tokenizer)
    assert (f"{share:.0%} of the tokens of the test texts are [UNK]" in capsys.readouterr().out) == says


def rows_of(labels):
    return [Example("", "text", label=label) for label in labels]


def test_of_two_equally_frequent_classes_the_second_one_is_looked_for():
    """Of two classes that are equally frequent the second one is looked for: 1 of 0 and 1, yes of no and yes."""
    fitted = Classification().fitted(rows_of(["1", "0", "0", "1"]), Columns(("text",), "label"), FinetuneSettings())
    assert fitted.labels[fitted.positive] == "1"
