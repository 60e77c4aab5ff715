"""Schemes of tags and entity scores, against seqeval and scikit-learn."""

import warnings

import numpy as np
import pytest
import seqeval.metrics as seqeval
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES
from sklearn import metrics as reference

from finetune.entities.tag_metrics import per_type, tagging_scores
from finetune.entities.tags import (
    Entity,
    are_untyped,
    entities,
    in_scheme,
    io_entities,
    iob2,
    scheme_of,
    scheme_of_labels,
    typed,
)

LABELS = ["O", "B-gene", "I-gene", "B-drug", "I-drug"]
SCHEMES = {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES, "BILOU": BILOU, "BMES": None}
sentence = st.lists(st.sampled_from(LABELS), max_size=9)


@st.composite
def entities_of_words(draw) -> tuple[int, list[Entity]]:
    """(number of words, entities that do not overlap)."""
    found, place = [], 0
    for gap, length, kind in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from("ab")))):
        found.append(Entity(place + gap, place + gap + length, kind))
        place += gap + length
    return place + draw(st.integers(0, 2)), found


@given(sentence)
@settings(max_examples=400)
def test_entities_are_those_of_conlleval_whatever_the_tags(tags):
    assert [(e.type, e.start, e.end - 1) for e in entities(tags)] == get_entities(tags)


@given(entities_of_words())
@settings(max_examples=300)
def test_each_scheme_says_the_same_entities(case):
    length, found = case
    tags = iob2(found, length)
    assert entities(tags) == entities(tags, strict=True) == found
    for scheme, theirs in SCHEMES.items():
        written = in_scheme(tags, scheme)
        assert entities(written) == found and len(written) == length
        if found and theirs:
            strictly = seqeval.precision_score([written], [written], mode="strict", scheme=theirs)
            assert strictly == 1.0
            report = seqeval.classification_report([written], [written], mode="strict", scheme=theirs, output_dict=True)
            assert report["micro avg"]["support"] == len(found)


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        ([["O", "B-a", "I-a"], ["B-a", "B-a"]], "IOB2"),
        ([["I-a", "I-a", "B-a"], ["O", "I-b"]], "IOB1"),
        ([["B-a", "E-a", "S-b"]], "BIOES"),
        ([["B-a", "L-a", "U-b"]], "BILOU"),
        ([["B-a", "M-a", "E-a"]], "BMES"),
        ([["O", "PER", "PER"]], "IO"),
        ([["O", "E-mail", "E-mail", "O"], ["Phone"]], "IO"),
        ([["E-mail", "Phone"]], "names"),
        ([["O", "S-a"]], "BIOES"),
        ([["NN", "VB"]], "names"),
        # Neither of the two: an entity begins with I-, and one with B- where IOB1 has I-.
        ([["O", "I-a"], ["O", "B-a"]], "IOB2"),
        ([["O", "O"]], "IO"),
    ],
)
def test_the_scheme_is_found(sentences, scheme):
    assert scheme_of(sentences) == scheme


def test_the_scheme_of_a_model_is_that_of_its_labels():
    assert scheme_of_labels(["O", "B-a", "I-a"]) == "IOB2" and scheme_of_labels(["O", "I-a"]) == "IOB2"
    assert scheme_of_labels(["O", "S-a", "B-a"]) == "BIOES" and scheme_of_labels(["O", "PER"]) == "IO"
    assert scheme_of_labels(["NN", "VB"]) == "names" and scheme_of_labels(["O", "E-mail"]) == "IO"


def test_prefixes_alone_are_of_one_type():
    rows = [["O", "B", "I"], ["B", "B", "O"]]
    assert are_untyped(rows) and not are_untyped([["O", "B-x"]]) and not are_untyped([["B", "NN"]])
    assert not are_untyped([["O", "O"]])
    assert [len(entities(typed(tags))) for tags in rows] == [1, 2] and scheme_of(map(typed, rows)) == "IOB2"


def test_neighbours_of_one_name_are_one_entity_where_tags_have_no_prefix():
    assert io_entities(["O", "a", "a", "b", "O", "a"]) == [Entity(1, 3, "a"), Entity(3, 4, "b"), Entity(5, 6, "a")]
    assert in_scheme(["O", "B-a", "I-a", "B-b"], "IO") == ["O", "a", "a", "b"]


cases = st.lists(st.tuples(sentence, st.integers(0, 2**31)), min_size=1, max_size=6)


@given(cases)
@settings(max_examples=100)
def test_scores_are_those_of_seqeval(rows):
    check_scores(rows)


@pytest.mark.slow
@given(cases)
@settings(max_examples=200, deadline=None)
def test_scores_are_those_of_seqeval_in_many_cases(rows):
    check_scores(rows)


def check_scores(rows):
    gold = [iob2(entities(tags), len(tags)) for tags, _ in rows]
    outputs = [np.random.default_rng(seed).dirichlet(np.ones(5), len(tags)).astype(np.float32) for tags, seed in rows]
    given_ = [[LABELS[i] for i in each.argmax(1)] for each in outputs]
    targets = np.array([(n, LABELS.index(tag)) for n, tags in enumerate(gold) for tag in tags]).reshape(-1, 2)
    if not len(targets):
        return
    found = tagging_scores(targets, np.concatenate(outputs), LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strictly = {"mode": "strict", "scheme": IOB2}
        report, strict = (
            seqeval.classification_report(gold, given_, output_dict=True, zero_division=0, **mode)
            for mode in ({}, strictly)
        )
        for name, of in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert (found[name] or 0) == pytest.approx(report["micro avg"][of]), name
            assert (found[f"strict_{name}"] or 0) == pytest.approx(strict["micro avg"][of]), name
    # A share of nothing, which is 0 there, is not defined.
    has = [any(name != "O" for tags in each for name in tags) for each in (gold, given_)]
    wholes = {"precision": has[1], "recall": has[0], "f1": any(has)}
    assert {name: found[name] is not None for name in wholes} == wholes
    assert found["accuracy"] == pytest.approx(seqeval.accuracy_score(gold, given_))
    for row in per_type(targets, np.concatenate(outputs), LABELS, of_words=False):
        theirs = report.get(row["label"], {"precision": 0, "recall": 0, "f1-score": 0, "support": 0})
        assert [row[n] for n in ("precision", "recall", "f1", "support")] == pytest.approx(
            [theirs[n] for n in ("precision", "recall", "f1-score", "support")]
        )
        theirs = strict.get(row["label"], {"precision": 0, "recall": 0, "f1-score": 0})
        assert [row[f"strict_{n}"] for n in ("precision", "recall", "f1")] == pytest.approx(
            [theirs[n] for n in ("precision", "recall", "f1-score")]
        )


def test_words_without_entities_are_scored_one_by_one():
    rng = np.random.default_rng(1)
    gold, outputs = rng.integers(0, 4, 300), rng.dirichlet(np.ones(4), 300).astype(np.float32)
    targets = np.stack([np.arange(300) // 7, gold], axis=1)
    found = tagging_scores(targets, outputs, list("abcd"), of_words=True)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(gold, outputs.argmax(1)))
    assert found["macro_f1"] == pytest.approx(reference.f1_score(gold, outputs.argmax(1), average="macro"))
    assert found["loss"] == pytest.approx(reference.log_loss(gold, outputs, labels=range(4)), rel=1e-5)


def test_a_type_of_no_word_does_not_count():
    """A tag that neither a word has nor a word was given does not count."""
    targets, outputs = np.array([[0, 0], [0, 1]]), np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], np.float32)
    assert tagging_scores(targets, outputs, ["a", "b", "c"], of_words=True)["macro_f1"] == 1
