"""Scores against a count by hand and against scikit-learn called directly, on thousands of random cases."""

import math
import statistics
import warnings

import numpy as np
import pytest
import sklearn.metrics as reference

from finetune.metrics import METRICS, combined, confusion, per_class, scores, spread


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """1-40 texts of 2-6 classes: gold classes out of a random subset, probabilities smooth or with ties and zeros."""
    rng = np.random.default_rng(seed)
    num_labels, n = int(rng.integers(2, 7)), int(rng.integers(1, 41))
    present = rng.permutation(num_labels)[: rng.integers(1, num_labels + 1)]
    gold = rng.choice(present, n)
    if seed % 2:
        weights = rng.integers(0, 4, (n, num_labels)).astype(float)
        weights[:, rng.permutation(num_labels)[: num_labels // 2]] *= rng.integers(0, 2)
        weights[weights.sum(axis=1) == 0, gold[0]] = 1
    else:
        weights = rng.dirichlet(np.full(num_labels, 0.5), n) + 1e-9
        weights[np.arange(n), gold] += rng.uniform(0, 1)
    return gold.astype(np.int64), (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def counted(gold: list[int], rows: list[list[float]]) -> dict[str, float]:
    """The scores by their definitions, one text at a time."""
    predicted = [max(range(len(row)), key=lambda c: (row[c], -c)) for row in rows]
    pairs, n = list(zip(gold, predicted, strict=True)), len(gold)
    found = {name: 0.0 for name in METRICS}
    found["accuracy"] = sum(g == p for g, p in pairs) / n
    found["loss"] = sum(-math.log(max(row[g], 2.0**-23)) for g, row in zip(gold, rows, strict=True)) / n
    present = {*gold, *predicted}
    for c in present:
        right = pairs.count((c, c))
        precision = right / predicted.count(c) if c in predicted else 0.0
        recall = right / gold.count(c) if c in gold else 0.0
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        for name, value in (("precision", precision), ("recall", recall), ("f1", f1)):
            found[f"macro_{name}"] += value / len(present)
            found[f"weighted_{name}"] += value * gold.count(c) / n
    found["mcc"] = correlation(gold, predicted) if len(set(gold)) > 1 else None
    classes = [c for c in range(len(rows[0])) if 0 < gold.count(c) < n]
    aurocs = [auroc([row[c] for g, row in zip(gold, rows, strict=True) if g == c],
                    [row[c] for g, row in zip(gold, rows, strict=True) if g != c]) for c in classes]  # fmt: skip
    found["auroc"] = sum(aurocs) / len(aurocs) if aurocs else None
    precisions = [average_precision([(row[c], g == c) for g, row in zip(gold, rows, strict=True)]) for c in set(gold)]
    found["average_precision"] = sum(precisions) / len(precisions)
    bins = [math.ceil(np.float64(max(row)) * 15) for row in rows]
    found["calibration_error"] = sum(
        abs(sum((max(row) - (g == p)) for b, row, (g, p) in zip(bins, rows, pairs, strict=True) if b == each)) / n
        for each in set(bins)
    )
    return found


def auroc(positive: list[float], negative: list[float]) -> float:
    """The share of pairs that stand in the right order."""
    return sum((p > q) + (p == q) / 2 for p in positive for q in negative) / (len(positive) * len(negative))


def average_precision(rows: list[tuple[float, bool]]) -> float:
    """The precision at each different number, times the share of the positive ones with this number."""
    total, found = sum(positive for _, positive in rows), 0.0
    for number in {number for number, _ in rows}:
        above = [positive for other, positive in rows if other >= number]
        found += sum(above) / len(above) * sum(p for other, p in rows if other == number) / total
    return found


def correlation(gold: list[int], predicted: list[int]) -> float:
    """The correlation of the two tables of 0 and 1, a row each text and a column each class, over all their cells."""
    classes = sorted({*gold, *predicted})
    x, y = (np.array([[float(c == of) for of in classes] for c in side]) for side in (gold, predicted))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    variance = (x * x).sum() * (y * y).sum()
    return float((x * y).sum() / math.sqrt(variance)) if variance > 1e-12 else 0.0


def in_cases(every: int):
    """Some of them, and others in the slow tests, more of them where they take little time."""
    others = pytest.param(range(400, 600, max(1, every // 5)), marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [range(0, 400, every), others])


@in_cases(every=1)
def test_scores_equal_a_count_by_hand_and_print_no_warning(seeds):
    degenerate = 0
    for seed in seeds:
        gold, probabilities = random_case(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = scores(gold, probabilities)
        assert tuple(found) == METRICS
        undefined = {"auroc", "mcc"} if len(set(gold.tolist())) == 1 else set()
        assert all(type(value) is float for name, value in found.items() if name not in undefined)
        assert found == pytest.approx(counted(gold.tolist(), probabilities.tolist()), abs=1e-9), seed
        degenerate += len(set(gold.tolist())) == 1
    assert degenerate > len(seeds) / 4


@pytest.mark.filterwarnings("ignore::UserWarning")
@in_cases(every=15)
def test_scores_equal_those_of_scikit_learn(seeds):
    for seed in seeds:
        gold, probabilities = random_case(seed)
        found = scores(gold, probabilities)
        predicted = probabilities.argmax(axis=1)
        report = reference.classification_report(gold, predicted, output_dict=True, zero_division=0)
        for average in ("macro", "weighted"):
            expected = report[f"{average} avg"]
            assert found[f"{average}_precision"] == pytest.approx(expected["precision"], abs=1e-12), seed
            assert found[f"{average}_recall"] == pytest.approx(expected["recall"], abs=1e-12), seed
            assert found[f"{average}_f1"] == pytest.approx(expected["f1-score"], abs=1e-12), seed
        assert found["accuracy"] == reference.accuracy_score(gold, predicted)
        # Of one gold class it has 0, also for a perfect model.
        if len(set(gold.tolist())) == 1:
            assert found["mcc"] is None and reference.matthews_corrcoef(gold, gold) == 0
        else:
            assert found["mcc"] == pytest.approx(reference.matthews_corrcoef(gold, predicted), abs=1e-12)
        loss = reference.log_loss(gold, probabilities, labels=range(probabilities.shape[1]))
        assert found["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6), seed


@pytest.mark.filterwarnings("ignore::UserWarning")
@in_cases(every=15)
def test_every_class_has_its_row(seeds):
    for seed in seeds:
        gold, probabilities = random_case(seed)
        num_labels = probabilities.shape[1]
        labels, predicted = [f"class {c}" for c in range(num_labels)], probabilities.argmax(axis=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows = per_class(gold, probabilities, labels)
            matrix = confusion(gold, probabilities, num_labels)
        report = reference.classification_report(
            gold, predicted, labels=range(num_labels), target_names=labels, output_dict=True, zero_division=0
        )
        expected = [
            {"label": label, "precision": row["precision"], "recall": row["recall"], "f1": row["f1-score"],
             "support": gold.tolist().count(c)}
            for c, (label, row) in enumerate((label, report[label]) for label in labels)
        ]  # fmt: skip
        assert rows == expected, seed
        assert all(type(row["support"]) is int for row in rows)
        by_hand = [[sum((gold == g) & (predicted == p)) for p in range(num_labels)] for g in range(num_labels)]
        assert matrix.dtype == np.int64 and matrix.toarray().tolist() == by_hand, seed


def test_of_two_classes_the_one_that_is_looked_for_is_ranked():
    rng = np.random.default_rng(1)
    gold, of_second = rng.choice(2, 80, p=[0.8, 0.2]), rng.integers(0, 11, 80) / 10
    probabilities = np.stack([1 - of_second, of_second], axis=1).astype(np.float32)
    for positive in (0, 1):
        found, ranked = scores(gold, probabilities, positive), (gold == positive, probabilities[:, positive])
        assert found["average_precision"] == pytest.approx(reference.average_precision_score(*ranked))
        assert found["auroc"] == pytest.approx(reference.roc_auc_score(*ranked))


def test_ties_go_to_the_first_class():
    found = scores(np.array([1, 2]), np.array([[0.2, 0.4, 0.4], [0.2, 0.4, 0.4]], dtype=np.float32))
    assert found["accuracy"] == 0.5


def test_the_loss_is_finite_and_never_negative():
    sure = np.array([[1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    assert str(scores(np.array([0, 0]), sure)["loss"]) == "0.0"
    assert scores(np.array([1, 1]), sure)["loss"] == pytest.approx(23 * math.log(2))


def test_spread_over_seeds():
    values = [0.81, 0.79, 0.86, 0.8]
    expected = {"mean": statistics.mean(values), "std": statistics.stdev(values)}
    found = spread(values)
    assert found.pop("seeds") == values and found == pytest.approx(expected)
    assert spread([0.5]) == {"mean": 0.5, "std": None, "seeds": [0.5]}


def test_combined_keeps_the_metrics_apart_and_the_seeds_in_order():
    found = combined([{"accuracy": 0.5, "mcc": 0.1}, {"accuracy": 0.7, "mcc": -0.1}])
    assert {name: value["seeds"] for name, value in found.items()} == {"accuracy": [0.5, 0.7], "mcc": [0.1, -0.1]}
    assert found["mcc"]["mean"] == 0 and found["accuracy"]["std"] == pytest.approx(math.sqrt(0.02))
