"""Thresholds, rates and temperatures, against scikit-learn and a search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax
from sklearn import metrics as reference

from finetune.operating_point import (
    OTHER,
    OperatingPoint,
    at_temperature,
    label_temperature,
    labels_at_temperature,
    rates,
    tell_temperature,
    temperature,
    threshold_for,
)
from finetune.settings import FinetuneError

rows = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=30)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 3)), min_size=1, max_size=30))
@settings(max_examples=60)
def test_rates_are_those_of_scikit_learn(rows):
    positive, given_, weights = (np.array(column) for column in zip(*rows, strict=True))
    found = rates(positive, given_, weights)
    options = {"sample_weight": weights, "zero_division": np.nan}
    expected = {
        "sensitivity": reference.recall_score(positive, given_, **options),
        "specificity": reference.recall_score(~positive, ~given_, **options),
        "ppv": reference.precision_score(positive, given_, **options),
        "npv": reference.precision_score(~positive, ~given_, **options),
        **{name: reference.fbeta_score(positive, given_, beta=beta, **options)
           for name, beta in (("f1", 1), ("f2", 2), ("f05", 0.5))},
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name] is None if np.isnan(value) else found[name] == pytest.approx(value), name


@given(rows, st.sampled_from(list(OTHER)), st.sampled_from([0.3, 0.5, 0.8, 0.95, 1.0]))
@settings(max_examples=100)
def test_no_threshold_reaches_the_wish_at_less_cost(rows, name, value):
    positive, numbers = (np.array(column) for column in zip(*rows, strict=True))
    numbers = numbers / 8
    chosen = threshold_for(OperatingPoint(name, value), positive, numbers)

    def rank(cut):
        found = rates(positive, numbers >= cut)
        reached, other = found[name], found[OTHER[name]]
        return None if reached is None or other is None else (min(reached, value), other, reached)

    every = [each for each in map(rank, np.linspace(-0.01, 1.02, 200)) if each]
    if every:
        assert rank(chosen) == max(every)


@pytest.mark.parametrize("text", ["sensitivity", "sensitivity=", "sensitivity=95", "recall=0.9", "ppv=0", "npv=x"])
def test_other_wishes_are_refused(text):
    with pytest.raises(FinetuneError, match="--operating-point"):
        OperatingPoint.parse(text)
    assert str(OperatingPoint.parse("npv=0.9")) == "npv=0.9"


def test_the_temperature_takes_back_what_made_probabilities_too_sure():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (5000, 4))
    gold = np.array([rng.choice(4, p=softmax(row)) for row in logits])
    sure = softmax(3 * logits, axis=1).astype(np.float32)
    found = temperature(gold, sure)
    assert found == pytest.approx(3, rel=0.05)
    back = at_temperature(sure, found)
    assert (back.argmax(1) == sure.argmax(1)).all() and back.sum(1) == pytest.approx(np.ones(5000), abs=1e-5)
    losses = [-log_softmax(np.log(sure.astype(np.float64)) / t, axis=1)[np.arange(5000), gold].mean()
              for t in (found * 0.9, found, found * 1.1)]  # fmt: skip
    assert losses[1] == min(losses)
    assert reference.log_loss(gold, back) == pytest.approx(losses[1], rel=1e-4)


def test_the_temperature_of_labels_takes_back_what_made_them_too_sure():
    rng = np.random.default_rng(1)
    logits = rng.normal(-1, 2, (3000, 4))
    targets = (rng.random(logits.shape) < expit(logits)).astype(np.float32)
    sure = expit(3 * logits).astype(np.float32)
    found = label_temperature(targets, sure)
    assert found == pytest.approx(3, rel=0.05)
    losses = [reference.log_loss(targets.ravel(), labels_at_temperature(sure, t).ravel().astype(np.float64))
              for t in (found * 0.95, found, found * 1.05)]  # fmt: skip
    assert losses[1] == min(losses)


def test_a_temperature_at_the_edge_of_the_search_is_told_as_one():
    rng = np.random.default_rng(1)
    probabilities = softmax(rng.normal(0, 3, (200, 3)), axis=1).astype(np.float32)
    # Always wrong: no temperature is high enough. Always right: none is low enough.
    for gold, edge in ((probabilities.argmin(1), " or more"), (probabilities.argmax(1), " or less")):
        (told,) = tell_temperature(temperature(gold, probabilities), True, "texts")
        assert told.endswith(edge)
    assert tell_temperature(2.0, False, "texts")[0].endswith("at temperature 2.00 (--calibrate)")
