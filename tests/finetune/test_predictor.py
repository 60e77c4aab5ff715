"""A fine-tuned folder, asked by us and by transformers."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from pandas import DataFrame
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from finetune.batches import BatchMaker, encode, overlapping
from finetune.predictor import FACTS_FILE, Classifier, Facts, Predictor, outputs, seed_folders
from finetune.rows import Example
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks.classification import Classification
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.selection import task_of_folder
from finetune.tasks.tagging import Tagging
from finetune.vectors.embedder import Embedder
from model import BertConfig
from pretrain.engine.checkpoint import save_model_folder
from pretrain.engine.device import Precision
from pretrain.engine.distributed import World
from pretrain.settings import PretrainError

transformers.utils.logging.disable_progress_bar()

LABELS = ["calm", "loud", "of no kind"]
TASK = Classification(LABELS)
pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 16
# Short and long ones in turn, so that an order by length is not the order given.
TEXTS = [f"{'heart rate of the patient ' * (n * 7 % 5)}was {n} [mask] stable, {n * n}." for n in range(12)]
PAIRS = [(text, TEXTS[n * 5 % 12]) for n, text in enumerate(TEXTS)]


def singles():
    return [Example(f"t:{n}", text) for n, text in enumerate(TEXTS)]


def pairs():
    return [Example(f"t:{n}", first, second) for n, (first, second) in enumerate(PAIRS)]


@pytest.fixture(scope="module")
def fine_tuned(encoder, small_tokenizer, tmp_path_factory):
    """(long_text) -> a folder as fine-tuning leaves it, with dropout that must not act, for texts up to LENGTH."""

    def make(long_text="head"):
        folder = tmp_path_factory.mktemp("fine-tuned")
        model = TASK.build_model(FinetuneSettings(model=str(encoder), dropout=0.5), 3)
        save_model_folder(model, small_tokenizer, folder, model_max_length=LENGTH)
        Facts(("text",), LENGTH, long_text).write(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def folder(fine_tuned):
    return fine_tuned()


@torch.no_grad()
def by_transformers(folder, texts, length=LENGTH):
    """Probabilities by transformers, a text (or a pair) at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        text = text if isinstance(text, tuple) else (text,)
        rows = tokenizer(*text, truncation=True, max_length=length, return_tensors="pt")
        found.append(model(**rows).logits[0].softmax(-1).numpy())
    return np.array(found)


@pytest.fixture(scope="module")
def expected(folder):
    return {"singles": by_transformers(folder, TEXTS), "pairs": by_transformers(folder, PAIRS)}


# --- asked by us


@pytest.mark.parametrize("tokens", [10**9, 100, 1])
@pytest.mark.parametrize("kind", ["singles", "pairs"])
def test_probabilities_are_those_of_transformers(folder, expected, kind, tokens):
    examples, texts = (singles(), TEXTS) if kind == "singles" else (pairs(), PAIRS)
    found = Predictor(folder, micro_batch_tokens=tokens).outputs(examples)
    assert found.dtype == np.float32 and found.sum(1) == pytest.approx(np.ones(len(texts)), abs=1e-6)
    assert found == pytest.approx(expected[kind], abs=1e-5)
    assert np.ptp(found, axis=0).max() > 0.02, "texts that look all alike prove nothing"


def test_texts_that_do_not_fit_are_read_in_smaller_parts(folder, expected, monkeypatch, capsys):
    predictor, room = Predictor(folder), 40
    logits = type(predictor.task).logits

    def scarce(self, model, batch):
        if batch.num_tokens > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits(self, model, batch)

    monkeypatch.setattr(type(predictor.task), "logits", scarce)
    assert predictor.outputs(singles()) == pytest.approx(expected["singles"], abs=1e-5)
    assert "Out of GPU memory" in capsys.readouterr().err
    predictor.outputs(singles())
    assert not capsys.readouterr().err, "the smaller size stays"


def test_the_probabilities_of_windows_are_averaged(fine_tuned, expected, small_tokenizer):
    folder = fine_tuned("windows")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    averages, most = [], 0
    for text in TEXTS:
        ids = small_tokenizer.encode([text])[0]
        spans = overlapping(len(ids), LENGTH - 2)
        rows = [[tokenizer.cls_token_id, *ids[s : s + n], tokenizer.sep_token_id] for s, n in spans]
        with torch.no_grad():
            averages.append(model(input_ids=torch.tensor(rows)).logits.softmax(-1).mean(0).numpy())
        most = max(most, len(rows))
    assert most == 3
    for tokens in (10**9, 50):
        found = Predictor(folder, micro_batch_tokens=tokens).outputs(singles())
        assert found == pytest.approx(np.array(averages), abs=1e-5)
    assert found != pytest.approx(expected["singles"], abs=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_put_back(encoder, small_tokenizer, training):
    model = TASK.build_model(FinetuneSettings(model=str(encoder), dropout=0.5), 1).train(training)
    maker = BatchMaker(
        encode(singles(), TASK.targets(singles()), small_tokenizer, LENGTH, "head"), small_tokenizer, 200
    )
    first, again = (outputs(TASK, model, maker, Precision("cpu", "fp32"), World()) for _ in range(2))
    assert (first == again).all() and model.training is training and model.classifier.dropout.training is training
    assert next(model.parameters()).requires_grad


def test_bf16_is_close(folder):
    found = Predictor(folder, precision="bf16").outputs(singles())
    exact = Predictor(folder).outputs(singles())
    assert found == pytest.approx(exact, abs=0.1) and (found != exact).any()


@pytest.mark.parametrize("kind", ["singles", "pairs"])
def test_texts_of_a_program_get_labels_and_probabilities(fine_tuned, expected, kind):
    folder, texts = fine_tuned(), TEXTS if kind == "singles" else PAIRS
    Facts(("text",) if kind == "singles" else ("a", "b"), LENGTH, "head").write(folder)
    found = Predictor(folder, device="cpu").predict(iter(texts))
    assert [list(one) for one in found] == [["predicted_label", "probabilities"]] * len(texts)
    given = np.array([[one["probabilities"][label] for label in LABELS] for one in found])
    assert given == pytest.approx(expected[kind], abs=1e-5)
    assert [one["predicted_label"] for one in found] == [LABELS[n] for n in expected[kind].argmax(1)]
    assert Predictor(folder).predict([]) == []


TABLE = (
    'a table was given where texts should be: give one of its columns, as table["text"], or for pairs '
    'zip(table["text"], table["text_pair"])'
)


@pytest.mark.parametrize(("texts", "sentence"), [
    ("heart", "a single text was given where texts should be: put it into a list"),
    (DataFrame({"text": ["heart"]}), TABLE),
    (["heart", 7], "text 2 is a number: give a text, or a pair of texts"),
    (["heart", float("nan")], "text 2 is NaN: give a text, or a pair of texts"),
    ([("a", "b", "c")], "text 1 has 3 parts: give a text, or a pair of texts"),
    ([("a", None)], "text 1 has a part that is nothing: give a text, or a pair of texts"),
    ([("a", "b")], "text 1 is a pair: the model was trained on single texts"),
    (["heart", " \n"], "text 2 is empty: leave it out"),
    (["heart", "\u200b"], "text 2 is empty: leave it out"),
])  # fmt: skip
def test_what_is_no_text_is_one_sentence(folder, texts, sentence):
    with pytest.raises(FinetuneError) as error:
        Predictor(folder).predict(texts)
    assert str(error.value) == sentence


def test_a_single_text_is_no_pair(fine_tuned):
    folder = fine_tuned()
    Facts(("premise", "hypothesis"), LENGTH, "head").write(folder)
    with pytest.raises(FinetuneError, match="text 1 is a single text: the model was trained on pairs of texts"):
        Predictor(folder).predict(["heart"])


# --- asked by transformers


def test_transformers_opens_the_folder_and_knows_the_labels(folder):
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    assert config.id2label == dict(enumerate(LABELS)) and config.label2id == {n: i for i, n in enumerate(LABELS)}
    assert config.problem_type == "single_label_classification"
    assert AutoTokenizer.from_pretrained(folder).model_max_length == LENGTH


def test_the_pipeline_gives_our_probabilities(folder):
    ours = Predictor(folder)
    ask = pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    lengths = [len(ids) for ids in ours.tokenizer.encode(TEXTS)]
    assert max(lengths) > LENGTH > min(lengths)
    for result, row in zip(ask(TEXTS, truncation=True, batch_size=8), ours.outputs(singles()), strict=True):
        found = {entry["label"]: entry["score"] for entry in result}
        assert [found[name] for name in ours.task.labels] == pytest.approx(row.tolist(), abs=1e-5)


# --- made by transformers


@pytest.mark.parametrize("id2label", [None, {0: "b", 1: "a", 2: "c", 3: "d"}])
def test_a_classifier_of_transformers_is_read(encoder, tmp_path, id2label):
    torch.manual_seed(0)
    names = {"num_labels": 2} if id2label is None else {"id2label": id2label}
    config = transformers.BertConfig.from_pretrained(encoder, **names)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path)
    classifier = Predictor(tmp_path)
    assert classifier.task.labels == (["LABEL_0", "LABEL_1"] if id2label is None else ["b", "a", "c", "d"])
    assert classifier.facts == Facts((), 48, "head")
    for examples, texts in ((singles(), TEXTS), (pairs(), PAIRS)):
        expected = by_transformers(tmp_path, texts, length=48)
        assert classifier.outputs(examples) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("task", [Classification, MultiLabel, Tagging])
def test_labels_with_one_name_are_refused(task):
    config = BertConfig(id2label={0: "a", 1: "b", 2: "a"}, num_labels=3)
    with pytest.raises(FinetuneError, match="two labels with the name 'a'"):
        task().of_model(config)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("SequenceClassification", {"num_labels": 1, "problem_type": "regression"}, "regression"),
        ("SequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}, "multi-label"),
        ("SequenceClassification", {"num_labels": 3}, "classification"),
        ("TokenClassification", {"num_labels": 3}, "tagging"),
        ("MultipleChoice", {}, "multiple-choice"),
        ("QuestionAnswering", {}, "question-answering"),
    ],
)
def test_a_folder_of_transformers_shows_its_task(encoder, tmp_path, kind, options, name):
    config = transformers.BertConfig.from_pretrained(encoder, **options)
    getattr(transformers, f"BertFor{kind}")(config).save_pretrained(tmp_path)
    assert task_of_folder(tmp_path).name == name


def test_one_output_without_a_problem_type_is_told_what_a_number_wants(encoder, tmp_path):
    transformers.BertForSequenceClassification(
        transformers.BertConfig.from_pretrained(encoder, num_labels=1)
    ).save_pretrained(tmp_path)
    with pytest.raises(FinetuneError, match='config.json has to say "problem_type": "regression"'):
        task_of_folder(tmp_path).open_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"problem_type": "regression"}))
    assert task_of_folder(tmp_path).open_model(tmp_path).config.num_labels == 1


# --- facts and mistakes


def test_facts_come_back(tmp_path):
    facts = Facts(("premise", "hypothesis"), 40, "head-tail")
    facts.write(tmp_path)
    assert Facts.read(tmp_path, 48, TASK) == facts


def test_facts_decide_how_texts_are_read(fine_tuned):
    folder = fine_tuned("head-tail")
    long = Example("t:1", "heart " * 20 + "stable " * 20)
    other_middle = Example("t:2", "heart " * 20 + "7 " * 8 + "stable " * 20)
    other_end = Example("t:3", "heart " * 20 + "stable " * 19 + "7")
    found = Predictor(folder).outputs([long, other_middle, other_end])
    assert found[1] == pytest.approx(found[0], abs=1e-6) and found[2] != pytest.approx(found[0], abs=1e-4)


GOOD = {"text_columns": ["text"], "sequence_length": 16, "long_text": "head", "task": Classification.name}


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", "", "\udcff", '{"task": "classification"}', json.dumps(GOOD | {"more": 1}),
        json.dumps(GOOD | {"text_columns": 3}), json.dumps(GOOD | {"sequence_length": "long"}),
        json.dumps(GOOD | {"sequence_length": 49}), json.dumps(GOOD | {"sequence_length": 2}),
        json.dumps(GOOD | {"long_text": "tails"}), json.dumps(GOOD | {"text_columns": [[]]}),
        json.dumps(GOOD | {"text_columns": ["a", "b", "c"]}),
    ],
)  # fmt: skip
def test_damaged_facts_are_one_sentence(fine_tuned, content):
    folder = fine_tuned()
    (folder / FACTS_FILE).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(FinetuneError) as error:
        Predictor(folder)
    assert str(error.value) == f"{folder / FACTS_FILE} is damaged: copy the folder again, or fine-tune again"


@pytest.mark.parametrize(("name", "value", "words"), [
    ("threshold", math.nan, "threshold"), ("threshold", 5, "threshold"), ("threshold", 10**400, "threshold"),
    ("threshold", "0.5", "threshold"), ("temperature", 0, "temperature"), ("temperature", math.inf, "temperature"),
])  # fmt: skip
def test_a_decision_that_could_not_be_made_is_refused(fine_tuned, name, value, words):
    folder = fine_tuned()
    positive = Predictor(folder).task.labels[0]
    (folder / FACTS_FILE).write_text(json.dumps(GOOD | {"decision": {"positive": positive, name: value}}))
    with pytest.raises(FinetuneError, match=f"the {words} in finetune.json is no .*: copy the folder again"):
        Predictor(folder)


def test_facts_that_are_a_link_out_of_the_folder_are_refused(fine_tuned, tmp_path):
    folder = fine_tuned()
    (folder / FACTS_FILE).rename(tmp_path / "elsewhere.json")
    (folder / FACTS_FILE).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(FinetuneError, match="is a link out of its folder"):
        Predictor(folder)


def test_another_task_is_refused(fine_tuned):
    folder = fine_tuned()
    (folder / FACTS_FILE).write_text(json.dumps(GOOD | {"task": "tagging"}))
    with pytest.raises(FinetuneError, match="is a model for tagging, not for classification"):
        Predictor(folder, task=Classification())
    for opened in (Classifier, Classifier.load):
        with pytest.raises(FinetuneError, match="is a model for tagging: open it with finetune.Predictor"):
            opened(folder)


@pytest.mark.parametrize("kind", [Predictor, Embedder])
def test_devices_of_torch_are_devices_and_what_is_not_there_is_one_sentence(folder, kind):
    assert next(kind(folder, device=torch.device("cpu")).model.parameters()).device.type == "cpu"
    with pytest.raises(PretrainError, match=r"^--device tpu is not available on this machine: use one of cpu"):
        kind(folder, device="tpu")
    with pytest.raises(PretrainError, match=r"^precision 'float32' is not known: give one of bf16, fp16, fp32$"):
        kind(folder, precision="float32")


def test_a_pretrained_model_is_no_classifier(encoder, recwarn):
    with pytest.raises(FinetuneError, match=rf"no classifier.*finetune\.run --model {encoder}"):
        Predictor(encoder)
    assert not [warning for warning in recwarn if "start at random" in str(warning.message)]


def test_the_folder_of_a_run_names_the_one_inside(encoder):
    with pytest.raises(FinetuneError, match=rf"is not a model folder; give {encoder}$"):
        Predictor(encoder.parent)


def test_a_vocabulary_larger_than_the_model_is_refused(fine_tuned, small_tokenizer):
    folder = fine_tuned()
    vocabulary = [*small_tokenizer.vocabulary, "surplus"]
    type(small_tokenizer)(vocabulary, lowercase=True, strip_accents=False).save(folder, LENGTH)
    entries = small_tokenizer.vocab_size
    with pytest.raises(FinetuneError, match=rf"has {entries + 1} vocabulary entries and {entries} embeddings"):
        Predictor(folder)


def test_a_model_that_answers_with_no_numbers_is_refused(fine_tuned):
    asked = Classifier.load(fine_tuned(), device="cpu")
    with torch.no_grad():
        list(asked.model.parameters())[-1][0] = float("nan")
    with pytest.raises(FinetuneError, match=r"gives outputs that are NaN.* fine-tune again"):
        asked.predict(TEXTS)


def test_seed_10_comes_behind_seed_2(tmp_path):
    """Seed 10 comes behind seed 2."""
    for seed in (1, 2, 10):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "results.json").touch()
    assert [folder.name for folder in seed_folders(tmp_path)] == ["seed-1", "seed-2", "seed-10"]
