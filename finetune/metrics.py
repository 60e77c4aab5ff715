"""How good predictions are, beside what a classifier without a BERT reaches: always the same answer, and word counts
with a linear model.

C classes, n texts. Gold labels are np.int64 [n], probabilities np.float32 [n, C]; the prediction is what is given as
such (int64 [n]), else the class of the largest probability, the first of several that are equal.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from .entities.tags import entities, parts
from .operating_point import rates
from .ranking import Ranking, calibration_error

METRICS = (
    "accuracy",
    "macro_precision",
    "macro_recall",
    "macro_f1",
    "weighted_precision",
    "weighted_recall",
    "weighted_f1",
    "mcc",
    "auroc",
    "average_precision",
    "calibration_error",
    "loss",
)
OF_TWO = ("sensitivity", "specificity", "ppv", "npv", "positive_f1", "positive_f2", "positive_f05")
"""Besides the METRICS, where one of two classes is looked for (see `operating_point.rates`)."""
# With more classes nobody asks how well each of them is ranked.
_MOST_RANKED = 100
# What scikit-learn's log_loss does with float32: a gold class of probability 0 costs 15.9 nats, not infinity.
_SMALLEST = float(np.finfo(np.float32).eps)


def scores(
    gold: np.ndarray, probabilities: np.ndarray, positive: int | None = None, predicted: np.ndarray | None = None
) -> dict[str, float | None]:
    """The METRICS of predictions, as scikit-learn defines them with `zero_division=0`.

    Macro averages are over the classes that occur among gold labels or predictions; `mcc` is Matthews' correlation for
    any number of classes (Gorodkin 2004), 0 where the predictions are of a single class, and None where the gold labels
    are (scikit-learn has 0 there too); `auroc` and `average_precision` are of the positive class, or the mean over the
    classes among the gold labels, each against the rest, and None where there is none, or with over 100 classes;
    `calibration_error` is that of the answers (see `ranking`); `loss` is the mean negative log probability of the gold
    class in nats, probabilities below 1.2e-7 counted as that.

    Args:
        positive: of two classes the one that is looked for, for the scores OF_TWO.
    """
    from sklearn.metrics import matthews_corrcoef, precision_recall_fscore_support

    predicted = probabilities.argmax(axis=1) if predicted is None else predicted
    with warnings.catch_warnings():
        # It warns of few texts, of many classes and of a single class; all three have well-defined scores.
        warnings.simplefilter("ignore", UserWarning)
        found: dict[str, float | None] = {"accuracy": float(np.mean(gold == predicted))}
        # With gold labels of one class no predictions are better than others.
        found["mcc"] = None if len(np.unique(gold)) < 2 else float(matthews_corrcoef(gold, predicted))
        *columns, support = precision_recall_fscore_support(gold, predicted, zero_division=0)
    for name, column in zip(("precision", "recall", "f1"), columns, strict=True):
        found[f"macro_{name}"] = float(column.mean())
        found[f"weighted_{name}"] = float(np.average(column, weights=support))
    of_gold = probabilities[np.arange(len(gold)), gold].astype(np.float64)
    found["loss"] = float(np.log(1 / np.clip(of_gold, _SMALLEST, 1)).mean())
    given = probabilities[np.arange(len(gold)), predicted]
    found["calibration_error"] = calibration_error(given, predicted == gold)
    found |= _ranked(gold, probabilities, positive, np.ones((1, len(gold))))[0]
    ordered = {name: found[name] for name in METRICS}
    return ordered if positive is None else ordered | _of_two(gold, predicted, positive)


def _of_two(gold: np.ndarray, predicted: np.ndarray, positive: int, weights: np.ndarray | None = None):
    """The scores OF_TWO."""
    found = rates(gold == positive, predicted == positive, weights)
    return {name: found[name.removeprefix("positive_")] for name in OF_TWO}


def _ranked(
    gold: np.ndarray, probabilities: np.ndarray, positive: int | None, counts: np.ndarray
) -> list[dict[str, float | None]]:
    """`auroc` and `average_precision` of each of several draws of the texts (see `scores`).

    Args:
        counts: [B, n], how often each text is drawn.
    """
    classes = [positive] if positive is not None else range(probabilities.shape[1])
    rankings = {c: Ranking(probabilities[:, c]) for c in classes} if len(classes) <= _MOST_RANKED else {}
    found: list[dict[str, float | None]] = []
    for weights in counts:
        each = {c: (r.auroc(weights, gold == c), r.average_precision(weights, gold == c)) for c, r in rankings.items()}
        columns = [[value for value in column if value is not None] for column in zip(*each.values(), strict=True)]
        means = [float(np.mean(column)) if column else None for column in columns] or [None, None]
        found.append(dict(zip(("auroc", "average_precision"), means, strict=True)))
    return found


def scores_of_draws(
    gold: np.ndarray,
    probabilities: np.ndarray,
    draws: Sequence[np.ndarray],
    positive: int | None = None,
    predicted: np.ndarray | None = None,
) -> dict[str, Sequence[float | None]]:
    """The `scores` of draws of the texts, all at once: name -> one for each of B draws.

    Args:
        draws: B arrays of the numbers of texts, each as often as it is drawn.
    """
    from scipy.sparse import csr_array

    n, c = probabilities.shape
    predicted = probabilities.argmax(1) if predicted is None else predicted
    right = np.flatnonzero(gold == predicted)
    counts = _counts_of(draws, n)
    every = np.arange(n)

    def of_class(texts: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """How often each class is drawn: [B, C]."""
        return counts @ csr_array((np.ones(len(texts)), (texts, classes)), shape=(n, c)).toarray()

    of_gold, of_given, of_right = of_class(every, gold), of_class(every, predicted), of_class(right, gold[right])
    total, occurs = counts.sum(1), (of_gold + of_given) > 0
    found = {"accuracy": of_right.sum(1) / total}
    columns = {
        "precision": _ratio(of_right, of_given),
        "recall": _ratio(of_right, of_gold),
        "f1": _ratio(2 * of_right, of_gold + of_given),
    }
    for name, column in columns.items():
        found[f"macro_{name}"] = (column * occurs).sum(1) / occurs.sum(1)
        found[f"weighted_{name}"] = (column * of_gold).sum(1) / total
    # Gorodkin 2004, equation 8, of the margins.
    covariance = of_right.sum(1) * total - (of_gold * of_given).sum(1)
    spread = (total**2 - (of_gold**2).sum(1)) * (total**2 - (of_given**2).sum(1))
    found["mcc"] = np.where((of_gold > 0).sum(1) < 2, None, _ratio(covariance, np.sqrt(spread)))
    of_text = probabilities[every, gold].astype(np.float64)
    found["loss"] = counts @ np.log(1 / np.clip(of_text, _SMALLEST, 1)) / total
    confidence, is_right = probabilities[every, predicted], predicted == gold
    found["calibration_error"] = np.array([calibration_error(confidence, is_right, weights) for weights in counts])
    ranked = _ranked(gold, probabilities, positive, counts)
    ordered = {name: found[name] if name in found else [each[name] for each in ranked] for name in METRICS}
    if positive is None:
        return ordered
    of_two = [_of_two(gold, predicted, positive, weights) for weights in counts]
    return ordered | {name: [each[name] for each in of_two] for name in OF_TWO}


def _counts_of(draws: Sequence[np.ndarray], n: int) -> np.ndarray:
    """How often each of n texts is in each draw: float64 [B, n]."""
    return np.stack([np.bincount(draw, minlength=n) for draw in draws]).astype(np.float64)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, 0 where that is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def per_class(
    gold: np.ndarray, probabilities: np.ndarray, labels: Sequence[str], predicted: np.ndarray | None = None
) -> list[dict]:
    """`label`, `precision`, `recall`, `f1` and `support` (gold texts) of every class; an undefined score is 0.0."""
    from sklearn.metrics import precision_recall_fscore_support

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        precision, recall, f1, support = precision_recall_fscore_support(
            gold,
            probabilities.argmax(axis=1) if predicted is None else predicted,
            labels=np.arange(len(labels)),
            zero_division=0,
        )
    columns = zip(labels, precision.tolist(), recall.tolist(), f1.tolist(), map(int, support), strict=True)
    return [dict(zip(("label", "precision", "recall", "f1", "support"), row, strict=True)) for row in columns]


def confusion(
    gold: np.ndarray, probabilities: np.ndarray, num_labels: int, predicted: np.ndarray | None = None
) -> np.ndarray:
    """How many texts of each gold class (rows) were given each class (columns): int64 [C, C]."""
    from sklearn.metrics import confusion_matrix

    predicted = probabilities.argmax(axis=1) if predicted is None else predicted
    return confusion_matrix(gold, predicted, labels=np.arange(num_labels))


def spread(values: Sequence[float | None]) -> dict:
    """`mean`, `std` (of a sample: divided by n - 1; None for one value) and the values themselves as `seeds`; mean and
    std are None where a value is, which is not defined."""
    if any(value is None for value in values):
        return {"mean": None, "std": None, "seeds": list(values)}
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std, "seeds": list(values)}


def combined(results: Sequence[Mapping[str, float]]) -> dict[str, dict]:
    """The scores of several seeds -> the spread of each metric that all of them have."""
    names = [name for name in results[0] if all(name in result for result in results)]
    return {name: spread([result[name] for result in results]) for name in names}


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


def multi_label_scores_of_draws(
    gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray, draws: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The `multi_label_scores` of draws of the texts, all at once: name -> [B] (see `scores_of_draws`)."""
    gold = gold.astype(bool)
    counts = _counts_of(draws, len(gold))
    right, of_gold, of_given = (counts @ each.astype(np.float64) for each in (gold & given, gold, given))  # [B, K]
    occurs, is_gold, total = (of_gold + of_given) > 0, of_gold > 0, counts.sum(1)
    f1 = _ratio(2 * right, of_gold + of_given)
    rankings = [Ranking(column) for column in probabilities.T]
    precisions = np.array([
        [ranking.average_precision(weights, positive) or 0.0
         for ranking, positive in zip(rankings, gold.T, strict=True)]
        for weights in counts
    ])  # fmt: skip
    p = np.clip(probabilities.astype(np.float64), _SMALLEST, 1 - _SMALLEST)
    losses = -np.where(gold, np.log(p), np.log(1 - p)).mean(1)
    return {
        "micro_f1": _ratio(2 * right.sum(1), of_gold.sum(1) + of_given.sum(1)),
        "macro_f1": _ratio((f1 * occurs).sum(1), occurs.sum(1).astype(float)),
        "micro_precision": _ratio(right.sum(1), of_given.sum(1)),
        "micro_recall": _ratio(right.sum(1), of_gold.sum(1)),
        "map": _ratio((precisions * is_gold).sum(1), is_gold.sum(1).astype(float)),
        "exact_match": counts @ (gold == given).all(1) / total,
        "loss": counts @ losses / total,
    }


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


def tagging_scores_of_draws(
    targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str], of_words: bool, draws: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The `tagging_scores`, or `word_scores`, of draws of the texts, all at once: name -> [B].

    Args:
        of_words: every tag is a type of words, which are no entities.
        draws: B arrays of the numbers of texts, each as often as it is drawn.
    """
    texts, gold = targets.T
    n = 1 + max(int(texts.max(initial=0)), *(int(draw.max()) for draw in draws))
    predicted, counts = outputs.argmax(1), _counts_of(draws, n)

    def of_draws(numbers: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Sums over the texts of what belongs to the texts of these numbers: [B]."""
        return counts @ np.bincount(numbers, weights, n)

    words, losses = of_draws(texts), np.log(1 / np.clip(outputs[np.arange(len(gold)), gold], _SMALLEST, 1))
    of_tags = {
        "accuracy": _ratio(of_draws(texts, predicted == gold), words),
        "loss": _ratio(of_draws(texts, losses), words),
    }
    if of_words:
        f1, occurs = [], []
        for label in range(len(labels)):
            both = of_draws(texts, (gold == label) & (predicted == label))
            whole = of_draws(texts, gold == label) + of_draws(texts, predicted == label)
            f1.append(_ratio(2 * both, whole))
            occurs.append(whole > 0)
        return {"macro_f1": _ratio(np.sum(f1, axis=0), np.sum(occurs, axis=0).astype(float)), **of_tags}
    of_gold, given, strict = _found(targets, outputs, labels)
    number = {name: of_draws(np.array([entity[0] for entity in each], np.int64))
              for name, each in {"gold": of_gold, "given": given, "strict": strict, "right": of_gold & given,
                                 "strictly right": of_gold & strict}.items()}  # fmt: skip
    return {
        "f1": _ratio(2 * number["right"], number["gold"] + number["given"]),
        "precision": _ratio(number["right"], number["given"]),
        "recall": _ratio(number["right"], number["gold"]),
        "strict_f1": _ratio(2 * number["strictly right"], number["gold"] + number["strict"]),
        **of_tags,
    }


def _found(targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> tuple[set, set, set]:
    """The entities of all texts, with the number of their text: the gold ones, those given, and of these the strict."""
    texts, gold = targets.T
    starts = np.flatnonzero(np.diff(texts, prepend=-1))
    names = np.array(labels, dtype=object)
    found: tuple[set, set, set] = (set(), set(), set())
    columns = (gold, False), (outputs.argmax(1), False), (outputs.argmax(1), True)
    for into, (ids, strict) in zip(found, columns, strict=True):
        for text, tags in zip(texts[starts], np.split(names[ids], starts)[1:], strict=True):
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
