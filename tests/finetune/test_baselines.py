"""The baselines: class frequencies, and word counts with logistic regression."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from finetune.baselines import run_baselines
from finetune.dataset import Dataset
from finetune.metrics import scores
from finetune.operating_point import OperatingPoint
from finetune.rows import Columns, Example
from finetune.settings import FinetuneSettings
from finetune.simple_models import majority, tfidf, word_weights, words_in
from finetune.tasks.classification import Classification
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.regression import Regression

WORDS = "heart rate was stable after the dose while blood pressure fell in both groups".split()


def sentences(count: int, classes: list[int], seed: int, pair: bool = False) -> tuple[list[Example], np.ndarray]:
    """Random words, among them `sign<class>` in nine of ten texts; in the second text if they are pairs."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, count)
    examples = []
    for row, label in enumerate(labels):
        words = [*rng.choice(WORDS, 6), f"sign{label}" if rng.random() < 0.9 else "nosign"]
        text = " ".join(rng.permutation(words))
        examples.append(Example(f"t:{row + 1}", *(("the same", text) if pair else (text, None)), f"class {label}"))
    return examples, labels.astype(np.int64)


def test_majority_gives_the_frequencies_of_training():
    train = np.array([2, 0, 2, 2, 0, 2, 3, 2], dtype=np.int64)
    probabilities = majority(train, 3, 5)
    assert probabilities.dtype == np.float32
    np.testing.assert_array_equal(probabilities, np.float32([[0.25, 0, 0.625, 0.125, 0]] * 3))


def test_the_loss_of_the_majority_is_the_entropy_of_the_classes():
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    entropy = -sum(p * math.log(p) for p in (0.5, 0.3, 0.2))
    found = scores(labels, majority(labels, 100, 3))
    assert found["loss"] == pytest.approx(entropy, rel=1e-6)
    assert found["accuracy"] == 0.5


@pytest.mark.parametrize("balanced", [False, True])
def test_tfidf_equals_the_pipeline_of_scikit_learn_in_the_columns_of_its_classes(balanced):
    train, labels = sentences(120, [4, 0, 4, 4, 2], seed=1)
    first, second = sentences(40, [0, 2, 4], seed=2)[0], sentences(7, [0], seed=3)[0]
    found = tfidf(train, labels, [first, second], 6, balanced=balanced)
    pipeline = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10, max_iter=5000, class_weight="balanced" if balanced else None),
    ).fit([example.text for example in train], labels)
    for probabilities, rows in zip(found, (first, second), strict=True):
        assert probabilities.dtype == np.float32 and probabilities.shape == (len(rows), 6)
        expected = pipeline.predict_proba([example.text for example in rows])
        np.testing.assert_allclose(probabilities[:, [0, 2, 4]], expected, atol=1e-6)
        assert not probabilities[:, [1, 3, 5]].any()


def test_of_more_words_than_the_solver_has_memory_for_the_frequent_ones_are_taken(monkeypatch):
    monkeypatch.setattr("finetune.simple_models._MOST_WEIGHTS", 200)
    monkeypatch.setattr("finetune.simple_models._FEWEST_WORDS", 10)
    train, labels = sentences(120, [0, 1, 2, 3], seed=1)
    [found] = tfidf(train, labels, [train], 4, balanced=False)
    pipeline = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=50), LogisticRegression(C=10, max_iter=5000)
    ).fit([example.text for example in train], labels)
    np.testing.assert_allclose(found, pipeline.predict_proba([example.text for example in train]), atol=1e-6)


def test_tfidf_learns_from_the_second_text_of_a_pair():
    train, labels = sentences(150, [0, 1, 2], seed=4, pair=True)
    test, gold = sentences(100, [0, 1, 2], seed=5, pair=True)
    [probabilities] = tfidf(train, labels, [test], 3, balanced=False)
    assert scores(gold, probabilities)["accuracy"] > 0.85


@pytest.mark.parametrize(("text", "expected"), [
    ("患者发热, 3月 OK", ["患", "者", "发", "热", "月", "OK"]),
    ("मुझे बुखार है", ["मुझे", "बुखार", "है"]),
    ("มีไข้", ["ม", "ี", "ไ", "ข", "้"]),
    ("심장 질환이 있는 환자", ["심장", "질환이", "있는", "환자"]),
    ("nai\u0308ve a 3 mg", ["nai\u0308ve", "mg"]),
    ("so good😍😍 ♥ a", ["so", "good", "😍", "😍", "♥"]),
])  # fmt: skip
def test_words_are_counted_in_any_script(text, expected):
    assert words_in(text) == expected


# In small letters İ has a mark.
@given(st.text(st.characters(max_codepoint=0x2FF, exclude_characters="İ")))
def test_words_are_those_of_scikit_learn_where_they_have_no_marks(text):
    assert word_weights().build_analyzer()(text) == TfidfVectorizer().build_analyzer()(text)


def test_words_of_scripts_without_spaces_teach():
    letters = np.array([chr(0x4E00 + number) for number in range(300)])
    draws = np.random.default_rng(0).choice(letters, (300, 2, 8))
    rows = [Example("", f"{''.join(a)}{('发烧', '健康')[n % 2]}{''.join(b)}") for n, (a, b) in enumerate(draws)]
    labels = np.arange(300) % 2
    (found,) = tfidf(rows[:200], labels[:200], [rows[200:]], 2, balanced=False)
    assert (found.argmax(1) == labels[200:]).mean() > 0.95


def test_the_words_of_a_pair_stay_words():
    train = [Example("t:1", "alpha", "beta"), Example("t:2", "gamma", "delta")] * 3
    words = [Example("t:1", word) for word in ("alpha", "beta", "gamma", "delta")]
    [probabilities] = tfidf(train, np.array([0, 1] * 3), [words], 2, balanced=False)
    assert (probabilities.max(axis=1) > 0.7).all()
    assert probabilities.argmax(axis=1).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("texts", "labels"),
    [(["...", "!?", "- -"], [1, 1, 0]), (["alpha beta", "gamma", "delta"], [2, 2, 2])],
    ids=["no words", "one class"],
)
def test_where_nothing_can_be_learned_the_majority_answers(texts, labels):
    train = [Example(f"t:{row + 1}", text) for row, text in enumerate(texts)]
    labels = np.array(labels, dtype=np.int64)
    [probabilities] = tfidf(train, labels, [train[:2]], 3, balanced=False)
    np.testing.assert_array_equal(probabilities, majority(labels, 2, 3))


def test_balanced_weights_favour_the_rare_class():
    train, labels = sentences(200, [0] * 9 + [1], seed=6)
    unknown = [Example("t:1", "nosign")]
    plain, balanced = (tfidf(train, labels, [unknown], 2, balanced=b)[0] for b in (False, True))
    assert 2 * plain[0, 1] < balanced[0, 1]


def test_a_solver_that_does_not_converge_prints_nothing(monkeypatch):
    monkeypatch.setattr("finetune.simple_models._MOST_ITERATIONS", 2)
    train, labels = sentences(60, [0, 1], seed=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = tfidf([*train, Example("t:61", "")], np.append(labels, 0), [train], 2, balanced=False)
    assert found.shape == (60, 2)


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (Classification(["a", "b"], 1, OperatingPoint("sensitivity", 0.8)), ["a", "b"]),
        (MultiLabel(["a", "b"]), [(), ("a",), ("b",), ("a", "b")]),
        (Regression(), [0.5, 1.0, 7.0]),
    ],
    ids=["classification", "multi-label", "regression"],
)
def test_only_training_labels_teach_and_only_validation_labels_decide(task, labels):
    def asked(validation, test):
        """What is decided and what is answered, where the labels of the held-out texts are drawn with these seeds."""
        parts = []
        for number, seed in enumerate((0, validation, test)):
            drawn = np.random.default_rng(seed).integers(0, len(labels), 60)
            texts = sentences(60, [0, 1], seed=8 + number)[0]
            parts.append([replace(row, label=labels[label]) for row, label in zip(texts, drawn, strict=True)])
        keep = {}
        run_baselines(FinetuneSettings(), Dataset(task, Columns(("text",), "label"), *parts), keep)
        decided = {name: tuned.decision() for name, (tuned, _) in keep.items()}
        return decided, {
            name: {split: each.tolist() for split, each in found.items()} for name, (_, found) in keep.items()
        }

    decided, answered = asked(1, 2)
    assert asked(1, 3) == (decided, answered)
    others = asked(4, 2)
    assert others[1] == answered
    assert others[0] != decided or not any(decided.values()), "a number is a number without a decision"
