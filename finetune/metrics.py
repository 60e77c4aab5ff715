"""How good predictions are, beside what a classifier without a BERT reaches: always the same answer, and word counts
with a linear model.

C classes, n texts. Gold labels are np.int64 [n], probabilities np.float32 [n, C]; the prediction is the class of the
largest probability, the first of several that are equal.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from .tags import entities, parts

METRICS = (
    "accuracy",
    "macro_precision",
    "macro_recall",
    "macro_f1",
    "weighted_precision",
    "weighted_recall",
    "weighted_f1",
    "mcc",
    "loss",
)
# What scikit-learn's log_loss does with float32: a gold class of probability 0 costs 15.9 nats, not infinity.
_SMALLEST = float(np.finfo(np.float32).eps)


def scores(gold: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """The METRICS of predictions, as scikit-learn defines them with `zero_division=0`.

    Macro averages are over the classes that occur among gold labels or predictions; `mcc` is Matthews' correlation for
    any number of classes (Gorodkin 2004), 0 where one side has a single class; `loss` is the mean negative log
    probability of the gold class in nats, probabilities below 1.2e-7 counted as that.
    """
    from sklearn.metrics import matthews_corrcoef, precision_recall_fscore_support

    predicted = probabilities.argmax(axis=1)
    with warnings.catch_warnings():
        # It warns of few texts, of many classes and of a single class; all three have well-defined scores.
        warnings.simplefilter("ignore", UserWarning)
        found = {"accuracy": float(np.mean(gold == predicted)), "mcc": float(matthews_corrcoef(gold, predicted))}
        *columns, support = precision_recall_fscore_support(gold, predicted, zero_division=0)
    for name, column in zip(("precision", "recall", "f1"), columns, strict=True):
        found[f"macro_{name}"] = float(column.mean())
        found[f"weighted_{name}"] = float(np.average(column, weights=support))
    of_gold = probabilities[np.arange(len(gold)), gold].astype(np.float64)
    found["loss"] = float(np.log(1 / np.clip(of_gold, _SMALLEST, 1)).mean())
    return {name: found[name] for name in METRICS}


def per_class(gold: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> list[dict]:
    """`label`, `precision`, `recall`, `f1` and `support` (gold texts) of every class; an undefined score is 0.0."""
    from sklearn.metrics import precision_recall_fscore_support

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        precision, recall, f1, support = precision_recall_fscore_support(
            gold, probabilities.argmax(axis=1), labels=np.arange(len(labels)), zero_division=0
        )
    columns = zip(labels, precision.tolist(), recall.tolist(), f1.tolist(), map(int, support), strict=True)
    return [dict(zip(("label", "precision", "recall", "f1", "support"), row, strict=True)) for row in columns]


def confusion(gold: np.ndarray, probabilities: np.ndarray, num_labels: int) -> np.ndarray:
    """How many texts of each gold class (rows) were given each class (columns): int64 [C, C]."""
    from sklearn.metrics import confusion_matrix

    return confusion_matrix(gold, probabilities.argmax(axis=1), labels=np.arange(num_labels))


def spread(values: Sequence[float | None]) -> dict:
    """`mean`, `std` (of a sample: divided by n - 1; None for one value) and the values themselves as `seeds`; mean and
    std are None where a value is, which is not defined."""
    if any(value is None for value in values):
        return {"mean": None, "std": None, "seeds": list(values)}
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std, "seeds": list(values)}


def combined(results: Sequence[Mapping[str, float]]) -> dict[str, dict]:
    """The scores of several seeds -> the spread of each metric."""
    return {name: spread([result[name] for result in results]) for name in results[0]}


def multi_label_scores(gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray) -> dict[str, float]:
    """Scores over K labels: [n, K] each, gold of 0 and 1, given of bool.

    Micro averages count every label of every text alike, macro averages the labels that occur among gold or given ones;
    `map` is the mean over the labels with a gold text of the average precision; `exact_match` the share of texts whose
    labels are all right; `loss` the binary cross entropy, mean over texts and labels, in nats.
    """
    from sklearn.metrics import average_precision_score

    gold = gold.astype(bool)
    right, of_gold, of_given = (gold & given).sum(0), gold.sum(0), given.sum(0)
    occurs = (of_gold + of_given) > 0
    f1 = 2 * right[occurs] / (of_gold + of_given)[occurs]
    some = np.flatnonzero(of_gold)
    precisions = [average_precision_score(gold[:, label], probabilities[:, label]) for label in some]
    p = np.clip(probabilities.astype(np.float64), _SMALLEST, 1 - _SMALLEST)
    return {
        "micro_f1": _share(2 * right.sum(), of_gold.sum() + of_given.sum()),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "micro_precision": _share(right.sum(), of_given.sum()),
        "micro_recall": _share(right.sum(), of_gold.sum()),
        "map": float(np.mean(precisions)) if precisions else 0.0,
        "exact_match": float((gold == given).all(1).mean()),
        "loss": float(-np.where(gold, np.log(p), np.log(1 - p)).mean()),
    }


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def per_label(gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray, labels: Sequence[str]) -> list[dict]:
    """`label`, `precision`, `recall`, `f1`, `average_precision` (None without a gold text) and `support` of each."""
    from sklearn.metrics import average_precision_score

    gold, rows = gold.astype(bool), []
    for label, name in enumerate(labels):
        right, of_gold, of_given = ((gold & given)[:, label].sum(), gold[:, label].sum(), given[:, label].sum())
        precision = average_precision_score(gold[:, label], probabilities[:, label]) if of_gold else None
        rows.append({
            "label": name, "precision": _share(right, of_given), "recall": _share(right, of_gold),
            "f1": _share(2 * right, of_gold + of_given),
            "average_precision": None if precision is None else float(precision), "support": int(of_gold),
        })  # fmt: skip
    return rows


def tagging_scores(targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """How many entities were found: `f1`, `precision` and `recall` as conlleval and seqeval count them, where a tag I-
    that continues nothing begins an entity too; `strict_f1` where it does not (seqeval's strict mode); `accuracy` and
    `loss` of the words' tags. What has no entity at all has 0.

    Args:
        targets: int64 [I, 2], the text of each word and the place of its tag among `labels`.
        outputs: float32 [I, C] probabilities.
        labels: tags in IOB2.
    """
    found = word_scores(targets[:, 1], outputs)
    gold, given, strict = _found(targets, outputs, labels)
    precision, recall, f1 = _agreement(gold, given)
    return {
        "f1": f1, "precision": precision, "recall": recall, "strict_f1": _agreement(gold, strict)[2],
        "accuracy": found["accuracy"], "loss": found["loss"],
    }  # fmt: skip


def _found(targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> tuple[set, set, set]:
    """The entities of all texts, with the number of their text: the gold ones, those given, and of these the strict."""
    texts, gold = targets.T
    borders = np.flatnonzero(np.diff(texts)) + 1
    names = np.array(labels, dtype=object)
    found: tuple[set, set, set] = (set(), set(), set())
    columns = (gold, False), (outputs.argmax(1), False), (outputs.argmax(1), True)
    for into, (ids, strict) in zip(found, columns, strict=True):
        for text, tags in enumerate(np.split(names[ids], borders)):
            into.update((text, *entity) for entity in entities(tags, strict))
    return found


def _agreement(gold: set, given: set) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 where there is nothing to count."""
    right = len(gold & given)
    return _share(right, len(given)), _share(right, len(gold)), _share(2 * right, len(gold) + len(given))


def per_type(targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str], of_words: bool) -> list[dict]:
    """`label`, `precision`, `recall`, `f1` and `support` (gold entities, or words) of every type; see `tagging_scores`.

    Args:
        of_words: every tag is a type of words, which are no entities.
    """
    if of_words:
        return per_class(targets[:, 1], outputs, labels)
    gold, given, _ = _found(targets, outputs, labels)
    rows = []
    for name in sorted({parts(label)[1] for label in labels if parts(label)[0]}):
        of_gold, of_given = ({entity for entity in each if entity[-1] == name} for each in (gold, given))
        precision, recall, f1 = _agreement(of_gold, of_given)
        rows.append({"label": name, "precision": precision, "recall": recall, "f1": f1, "support": len(of_gold)})
    return rows


def word_scores(gold: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """`accuracy`, `macro_f1` and `loss` of the tags of words (see `scores`)."""
    found = scores(gold, outputs)
    return {name: found[name] for name in ("accuracy", "macro_f1", "loss")}


def regression_scores(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float | None]:
    """How near numbers are: float64 [n] each.

    Pearson's and Spearman's correlation are None, not defined, where one side is constant; `mae` and `rmse` are the
    mean absolute and the root mean squared error, `loss` the mean squared error.
    """
    from scipy.stats import pearsonr, spearmanr

    error = predicted - gold
    squared = float(np.mean(error**2))
    is_constant = min(np.ptp(gold), np.ptp(predicted)) == 0 or len(gold) < 2
    return {
        "pearson": None if is_constant else float(pearsonr(gold, predicted).statistic),
        "spearman": None if is_constant else float(spearmanr(gold, predicted).statistic),
        "mae": float(np.mean(np.abs(error))),
        "rmse": squared**0.5,
        "loss": squared,
    }


# Word counts of 5,000 to 50,000 texts took the solver 20 to 130.
_MOST_ITERATIONS = 2000


def majority(train_labels: np.ndarray, num_rows: int, num_labels: int) -> np.ndarray:
    """The class frequencies among `train_labels` (int64 [n]) for each of `num_rows` texts: float32 [rows, C].

    Its accuracy is that of the most frequent class, its loss that of knowing the frequencies alone.
    """
    frequencies = np.bincount(train_labels, minlength=num_labels) / len(train_labels)
    return np.tile(frequencies.astype(np.float32), (num_rows, 1))


def tfidf(
    train: Sequence,
    train_labels: np.ndarray,
    others: Sequence[Sequence],
    num_labels: int,
    balanced: bool,
) -> list[np.ndarray]:
    """Probabilities by logistic regression on words and word pairs, weighted by TF-IDF: float32 [rows, C] for each set.

    A class that is absent from training has probability 0. Where nothing can be learned, because the training texts
    contain no word or one class only, the answer is that of `majority`.

    Args:
        train: examples with `text` and `text_pair` (None, or a second text that is read as a further line).
        train_labels: their class ids, int64 [n].
        others: sets of examples to give probabilities for.
        balanced: every class counts alike in training, however frequent it is.
    """
    return _logistic(train, [train_labels], others, num_labels, balanced)[0]


def tfidf_of_labels(train: Sequence, targets: np.ndarray, others: Sequence[Sequence]) -> list[np.ndarray]:
    """Probabilities of each label by a logistic regression of its own (see `tfidf`): float32 [rows, K] for each set.

    Args:
        targets: [n, K] of 0 and 1.
    """
    columns = _logistic(train, list(targets.astype(np.int64).T), others, 2, balanced=False)
    return [np.stack([of_label[number][:, 1] for of_label in columns], axis=1) for number in range(len(others))]


def _logistic(
    train: Sequence, targets: Sequence[np.ndarray], others: Sequence[Sequence], num_labels: int, balanced: bool
) -> list[list[np.ndarray]]:
    """What `tfidf` gives, for each of several targets of the same texts; the words are counted once."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    if not _has_words(train, vectorizer):
        return [[majority(each, len(rows), num_labels) for rows in others] for each in targets]
    weights, results = "balanced" if balanced else None, []
    counts = vectorizer.fit_transform(map(_joined, train))
    counts_of_others = [vectorizer.transform(map(_joined, rows)) for rows in others]
    for each in targets:
        if len(np.unique(each)) == 1:
            results.append([majority(each, len(rows), num_labels) for rows in others])
            continue
        classifier = LogisticRegression(C=10, class_weight=weights, max_iter=_MOST_ITERATIONS)
        # The solver's vectors are too short to share: two threads take five times the time of one.
        with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(counts, each)
        found = [np.zeros((len(rows), num_labels), dtype=np.float32) for rows in others]
        for probabilities, rows in zip(found, counts_of_others, strict=True):
            probabilities[:, classifier.classes_] = classifier.predict_proba(rows)
        results.append(found)
    return results


def tfidf_regression(train: Sequence, numbers: np.ndarray, others: Sequence[Sequence]) -> list[np.ndarray]:
    """Numbers by ridge regression on words and word pairs, weighted by TF-IDF: float32 [rows, 1] for each set; the mean
    of the training numbers where the training texts contain no word.

    Args:
        numbers: of the training texts, float64 [n].
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    if not _has_words(train, vectorizer):
        return [np.full((len(rows), 1), numbers.mean(), np.float32) for rows in others]
    model = Ridge(alpha=1.0).fit(vectorizer.fit_transform(map(_joined, train)), numbers)
    return [model.predict(vectorizer.transform(map(_joined, rows)))[:, None].astype(np.float32) for rows in others]


def _has_words(examples: Sequence, vectorizer) -> bool:
    """Whether the vectorizer, which refuses a corpus without words, finds one."""
    analyse = vectorizer.build_analyzer()
    return any(analyse(_joined(example)) for example in examples)


def _joined(example) -> str:
    return example.text if example.text_pair is None else f"{example.text}\n{example.text_pair}"
