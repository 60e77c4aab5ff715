"""Intervals by resampling texts, or the groups that they are of."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

import finetune.intervals
from finetune.entities.tags import TagScheme
from finetune.intervals import _SEED, Resamples, by_part, groups_of, intervals, paired
from finetune.metrics import scores, scores_of_draws
from finetune.rows import Example
from finetune.tasks.classification import Classification
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.multiple_choice import MultipleChoice
from finetune.tasks.regression import Regression
from finetune.tasks.tagging import Tagging


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_all_draws_at_once_have_the_scores_of_each(n, c, seed):
    rng = np.random.default_rng(seed)
    gold, outputs = rng.integers(0, c, n), rng.dirichlet(np.ones(c), n).astype(np.float32)
    draws = [rng.integers(0, n, rng.integers(1, n + 1)) for _ in range(5)]
    found, of_one = scores_of_draws(gold, outputs, draws), scores_of_draws(gold, outputs, draws, positive=1)
    for number, draw in enumerate(draws):
        for positive, all_at_once in ((None, found), (1, of_one)):
            for name, value in scores(gold[draw], outputs[draw], positive).items():
                one = all_at_once[name][number]
                assert np.isnan(one) if value is None else one == pytest.approx(value, abs=1e-9), name


def test_a_group_is_drawn_whole_and_as_many_groups_as_there_are():
    examples = [Example("", "", group=name) for name in ["a", "b", "a", None, None, "b", "b"]]
    groups = groups_of(examples)
    assert groups.tolist() == [0, 1, 0, 2, 3, 1, 1]
    sizes = np.bincount(groups)
    for draw in Resamples(groups, 50):
        times = np.bincount(draw, minlength=7)
        assert all(len(set(times[groups == group])) == 1 for group in range(4))
        assert sum(times[groups == group][0] for group in range(4)) == 4 and sizes.sum() == 7
    draws = Resamples(groups, 3)
    assert len(list(draws)) == 3 and [d.tolist() for d in draws] == [d.tolist() for d in draws]


def test_texts_of_their_own_are_drawn_as_groups_of_one():
    one_by_one = np.random.default_rng(0).permutation(50)
    drawn = np.random.default_rng(_SEED).integers(0, 50, (20, 50))
    for draw, groups in zip(Resamples(one_by_one, 20), drawn, strict=True):
        assert one_by_one[draw].tolist() == groups.tolist()


def test_the_interval_of_an_accuracy_is_that_of_a_share():
    rng, n = np.random.default_rng(1), 1608
    gold = rng.integers(0, 2, n)
    outputs = np.eye(2, dtype=np.float32)[np.where(rng.random(n) < 0.82, gold, 1 - gold)]
    low, high = intervals(Classification(["a", "b"]), gold, outputs, [Example("", "")] * n)["accuracy"]
    share = float((outputs.argmax(1) == gold).mean())
    half = 1.96 * math.sqrt(share * (1 - share) / n)
    assert (low, high) == pytest.approx((share - half, share + half), abs=0.003)


def test_texts_of_one_patient_tell_less():
    rng = np.random.default_rng(2)
    of_group = rng.random(40) < 0.7
    gold = np.zeros(800, dtype=np.int64)
    outputs = np.eye(2, dtype=np.float32)[1 - np.repeat(of_group, 20).astype(int)]
    task = Classification(["a", "b"])
    alone = [Example("", "") for _ in gold]
    together = [Example("", "", group=str(number // 20)) for number in range(800)]
    widths = [np.ptp(intervals(task, gold, outputs, rows)["accuracy"]) for rows in (alone, together)]
    # Of texts that are all alike in a group only the groups count: the root of 20 times as wide.
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(20), rel=0.15)


def test_every_copy_of_a_text_of_words_is_a_text_of_its_own():
    task = Tagging(["O", "B-x", "I-x"])
    targets = np.array([(0, 1), (0, 2), (2, 1), (2, 0)])
    outputs = np.eye(3, dtype=np.float32)[[1, 2, 1, 1]]
    drawn, given_ = task.drawn(targets, outputs, np.array([2, 2, 1, 0]))
    assert drawn.tolist() == [[0, 1], [0, 0], [1, 1], [1, 0], [3, 1], [3, 2]] and len(given_) == 6
    # Three gold entities; five given, of which three are right.
    assert task.scores(drawn, given_)["precision"] == pytest.approx(3 / 5)


def test_what_resamples_do_not_tell_has_no_interval():
    # In some resamples all numbers are the same.
    gold = np.array([1.0, *[2.0] * 9])
    found = intervals(Regression(0.0, 1.0), gold, gold[:, None].astype(np.float32) + 1e-3, [Example("", "")] * 10)
    assert found["pearson"] is None
    found = intervals(Classification(["a", "b"]), np.zeros(50, int), np.eye(2)[[0] * 50], [Example("", "")] * 50)
    assert found["accuracy"] is None, "all answers are right"
    # Some resamples have no entity, and no label.
    words = np.stack([np.arange(100), np.arange(100) < 3], axis=1).astype(int)
    found = intervals(Tagging(["O", "B-x", "I-x"]), words, np.eye(3)[words[:, 1]], [Example("", "")] * 100)
    assert found["f1"] is found["strict_f1"] is found["recall"] is None
    labels = np.float32(words[:, 1:])
    found = intervals(MultiLabel(["x"]), labels, labels, [Example("", "")] * 100)
    assert found["micro_f1"] is found["macro_f1"] is found["map"] is None
    rows = [Example("", "", group=str(number % 9)) for number in range(90)]
    found = intervals(Classification(["a", "b"]), np.arange(90) % 2, np.eye(2)[np.arange(90) % 3 // 2], rows)
    assert found["accuracy"] is None, "nine groups"
    task, gold = Classification(["a", "b"]), np.arange(90) % 2
    gap = paired([(task, np.eye(2)[gold])], {"x": [(task, np.eye(2)[1 - gold])]}, gold, rows)["x"]["accuracy"]
    assert gap == {"difference": 1.0, "interval": None, "p": None}


def test_each_part_has_the_scores_and_intervals_of_its_own_texts_and_groups():
    """Twelve of one site, each alone; ten of another, of two patients; five of none."""
    rng, sites = np.random.default_rng(5), np.array(["a"] * 12 + ["b"] * 10 + [""] * 5)
    rng.shuffle(sites)
    rows = [Example("", "", group=str(n % 2) if site == "b" else None, part=site or None)
            for n, site in enumerate(sites.tolist())]  # fmt: skip
    task, gold = MultiLabel(["x"]), rng.integers(0, 2, (27, 1)).astype(np.float32)
    outputs = rng.random((27, 1)).astype(np.float32)
    found = by_part(task, gold, outputs, rows)
    assert {site: part["texts"] for site, part in found.items()} == {"a": 12, "b": 10, "": 5}
    assert list(found) == ["a", "b", ""], "the largest first"
    for site, part in found.items():
        own = np.flatnonzero(sites == site)
        assert part["scores"] == task.scores(gold[own], outputs[own])
        assert part["intervals"] == intervals(task, gold[own], outputs[own], [rows[n] for n in own])
    assert found["a"]["intervals"]["loss"] and not any(found["b"]["intervals"].values())
    # With the other seeds the mean of all, and still the intervals of the first.
    others = [(MultiLabel(["x"]), rng.random((27, 1)).astype(np.float32)) for _ in range(2)]
    of_three = by_part(task, gold, outputs, rows, others)
    own = np.flatnonzero(sites == "a")
    losses = [each.scores(gold[own], its[own])["loss"] for each, its in [(task, outputs), *others]]
    assert of_three["a"]["scores"]["loss"] == pytest.approx(np.mean(losses))
    assert of_three["a"]["intervals"] == found["a"]["intervals"]


def test_a_difference_over_seeds_has_the_interval_and_the_p_of_a_paired_t_test():
    rng, n = np.random.default_rng(7), 400
    # Which rows two seeds of each model answer rightly, the first of two choices.
    first, other = (rng.random((2, n)) < np.array(shares)[:, None] for shares in ((0.9, 0.6), (0.7, 0.76)))
    targets = np.stack([np.repeat(np.arange(n), 2), np.tile([1, 0], n)], axis=1)

    def seeds(right):
        return [(MultipleChoice(), np.stack([each, ~each], axis=1).reshape(-1, 1).astype(np.float32)) for each in right]

    for one, two in ((first, other), (other, first)):
        found = paired(seeds(one), {"x": seeds(two)}, targets, [Example("", "")] * n)["x"]["accuracy"]
        gaps = one.mean(0) - two.mean(0)
        expected = ttest_1samp(gaps, 0)
        assert found["difference"] == pytest.approx(gaps.mean())
        assert found["interval"] == pytest.approx(list(expected.confidence_interval()), abs=0.01)
        assert 0.2 < expected.pvalue < 0.6 and found["p"] == pytest.approx(expected.pvalue, abs=0.08)


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_all_draws_of_several_labels_have_the_scores_of_each(n, k, seed):
    rng = np.random.default_rng(seed)
    gold = (rng.random((n, k)) < rng.random(k)).astype(np.float32)
    outputs = np.round(rng.random((n, k)), 1).astype(np.float32)
    task = MultiLabel([str(label) for label in range(k)])
    task.thresholds = rng.random(k)
    check(task, gold, outputs, [rng.integers(0, n, rng.integers(1, n + 1)) for _ in range(4)])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_all_draws_of_tags_have_the_scores_of_each(lengths, of_words, seed):
    rng, labels = np.random.default_rng(seed), ["O", "B-x", "I-x", "B-y", "I-y"]
    task = Tagging(["O", "x", "y", "z", "w"], TagScheme("names")) if of_words else Tagging(labels)
    texts = np.repeat(np.arange(len(lengths)), lengths)
    targets = np.stack([texts, rng.integers(0, 5, len(texts))], axis=1)
    outputs = rng.dirichlet(np.ones(5), len(texts)).astype(np.float32)
    own = [number for number, length in enumerate(lengths) if length]
    if own:
        check(task, targets, outputs, [rng.choice(own, rng.integers(1, 9)) for _ in range(4)])


def check(task, targets, outputs, draws):
    """All at once has the scores of one draw after the other."""
    found = task.scores_of_draws(targets, outputs, draws)
    for number, draw in enumerate(draws):
        expected = task.scores(*task.drawn(targets, outputs, draw))
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            wanted = math.nan if value is None else value
            assert found[name][number] == pytest.approx(wanted, abs=1e-6, nan_ok=True), name


def test_memory_does_not_decide_an_interval(monkeypatch):
    rng, task = np.random.default_rng(3), Classification(["a", "b"])
    gold, outputs = rng.integers(0, 2, 40), rng.dirichlet(np.ones(2), 40).astype(np.float32)
    rows = [Example("", "")] * 40
    whole = intervals(task, gold, outputs, rows)
    monkeypatch.setattr(finetune.intervals, "_AT_ONCE", 90)
    assert intervals(task, gold, outputs, rows) == whole


def test_resamples_without_a_difference_count_for_neither_model():
    task, gold = Classification(["a", "b"]), np.arange(20) % 2
    given = gold.copy()
    given[7] = 1 - given[7]
    one, two = (np.eye(2, dtype=np.float32)[each] for each in (gold, given))
    for first, other in ((one, two), (two, one)):
        found = paired([(task, first)], {"x": [(task, other)]}, gold, [Example("", "")] * 20)["x"]["accuracy"]
        # This share of the resamples does not contain the only row on which they differ.
        assert found["p"] == pytest.approx(2 * (19 / 20) ** 20, abs=0.12)
