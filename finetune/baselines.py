"""What a classifier without a BERT reaches: always the same answer, and word counts with a linear model."""

import warnings
from collections.abc import Sequence

import numpy as np

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
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    if len(np.unique(train_labels)) == 1 or not _has_words(train, vectorizer):
        return [majority(train_labels, len(rows), num_labels) for rows in others]
    weights = "balanced" if balanced else None
    classifier = LogisticRegression(C=10, class_weight=weights, max_iter=_MOST_ITERATIONS)
    # The solver's vectors are too short to share: two threads take five times the time of one.
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(vectorizer.fit_transform(map(_joined, train)), train_labels)
    results = []
    for rows in others:
        probabilities = np.zeros((len(rows), num_labels), dtype=np.float32)
        probabilities[:, classifier.classes_] = classifier.predict_proba(vectorizer.transform(map(_joined, rows)))
        results.append(probabilities)
    return results


def _has_words(examples: Sequence, vectorizer) -> bool:
    """Whether the vectorizer, which refuses a corpus without words, finds one."""
    analyse = vectorizer.build_analyzer()
    return any(analyse(_joined(example)) for example in examples)


def _joined(example) -> str:
    return example.text if example.text_pair is None else f"{example.text}\n{example.text_pair}"
