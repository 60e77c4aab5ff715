"""What is predicted without a BERT: the same for every text, or by a linear model of its words and word pairs."""

import re
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from data_prep.text.wrapping import UNSPACED, marks

# Word counts of 5,000 to 50,000 texts took the solver 20 to 130.
_MOST_ITERATIONS = 2000
# Weights of a solver, over all classes, each of which takes some 240 bytes; and how many words and word pairs there may
# be in any case.
_MOST_WEIGHTS, _FEWEST_WORDS = 4_000_000, 1_000


# Scripts without spaces between words.
_SINGLE = f"\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff{UNSPACED}"
# Emoji and other pictures, hearts and stars among them, of which each is a word.
_PICTURES = "\u2600-\u27bf\U0001f000-\U0001faff"


@cache
def _patterns(shortest: int) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Characters that scikit-learn's words do without, words where there are some, and words where there are none."""
    words = f"[{_SINGLE}{_PICTURES}]|(?:[^\\W{_SINGLE}]|[{marks()}]){{{shortest},}}"
    return re.compile(f"[{_SINGLE}{_PICTURES}{marks()}]"), re.compile(words), re.compile(f"\\w{{{shortest},}}")


def words_in(text: str, shortest: int = 2) -> list[str]:
    """The words of `shortest` letters or more; of two or more, as scikit-learn has them. Accents and vowel signs behind
    a letter belong to its word, and of scripts without spaces between words each character is one, as each emoji
    is."""
    others, words, usual = _patterns(shortest)
    return (words if others.search(text) else usual).findall(text)


def word_weights(**options: Any) -> Any:
    """A vectorizer that weighs words by TF-IDF (see `words_in`).

    Args:
        options: of scikit-learn's TfidfVectorizer.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, tokenizer=words_in, token_pattern=None, **options)


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

    Of a great many words the most frequent ones are taken, as many as the solver has memory for. A class that is absent
    from training has probability 0. Where nothing can be learned, because the training texts
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
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    most_words = max(_FEWEST_WORDS, _MOST_WEIGHTS // num_labels)
    vectorizer = word_weights(ngram_range=(1, 2), max_features=most_words)
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
    from sklearn.linear_model import Ridge

    vectorizer = word_weights(ngram_range=(1, 2))
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
