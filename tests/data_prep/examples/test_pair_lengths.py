"""Lengths and numbers of sentences do not give the next-sentence label away: simple classifiers fail."""

import gzip
import re

import numpy as np
import pytest

from data_prep.examples.pairs import pairs
from data_prep.prepared import Shard

STARTS_WORD = np.ones(1, dtype=bool)


def length_features(shard: Shard, length: int, epochs: range) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B and their numbers of sentences [pairs, 4], and the labels, of the labelled pairs."""
    sentence = np.repeat(np.arange(len(shard.sentence_starts) - 1), np.diff(shard.sentence_starts))
    features, labels = [], []
    for epoch in epochs:
        rows = pairs(shard, length, 1, epoch, STARTS_WORD)
        some = rows.label >= 0
        columns = [rows.a_length[some], rows.b_length[some]]
        for start, size in (
            (rows.a_start[some], rows.a_length[some]),
            (rows.b_start[some], rows.b_length[some]),
        ):
            columns.append(sentence[start + size - 1] - sentence[start] + 1)
        features.append(np.stack(columns, axis=1))
        labels.append(rows.label[some])
    return np.concatenate(features), np.concatenate(labels)


def table_accuracy(train, train_labels, test, test_labels, widths) -> float:
    """A decision table: in each cell of binned features the more frequent label."""
    cells = [np.minimum(x // np.array(widths), 99) @ np.array([1, 100, 10_000, 1_000_000]) for x in (train, test)]
    known, cell = np.unique(cells[0], return_inverse=True)
    votes = np.bincount(cell, weights=2 * train_labels - 1)
    place = np.minimum(np.searchsorted(known, cells[1]), len(known) - 1)
    guess = (votes[place] > 0) & (known[place] == cells[1])
    return float((guess == test_labels).mean())


def regression_accuracy(train, train_labels, test, test_labels) -> float:
    """Least squares on all products of up to three features and the total length: a linear classifier."""

    def expand(x):
        x = np.column_stack([x, x[:, 0] + x[:, 1]]) / train.max(axis=0).max()
        x = np.column_stack([np.ones(len(x)), x])
        i, j, k = np.array([(i, j, k) for i in range(6) for j in range(i, 6) for k in range(j, 6)]).T
        return x[:, i] * x[:, j] * x[:, k]

    weights = np.linalg.lstsq(expand(train), 2.0 * train_labels - 1, rcond=None)[0]
    return float(((expand(test) @ weights > 0) == test_labels).mean())


def best_accuracy(learn: Shard, held_out: Shard, length: int) -> float:
    """The best of several classifiers that see lengths only, learned and scored on different documents."""
    data = (*length_features(learn, length, range(10)), *length_features(held_out, length, range(10)))
    scores = [regression_accuracy(*data)]
    for widths in [
        (4, 4, 1, 1),
        (16, 16, 1, 1),
        (8, 8, 99, 99),
        (1, 999, 99, 99),
        (999, 1, 99, 1),
        (32, 32, 2, 2),
    ]:
        scores.append(table_accuracy(*data, [w * length / 128 if w > 2 else w for w in widths]))
    return max(scores)


@pytest.mark.parametrize("length", [64, 128, 512])
def test_lengths_do_not_give_the_label_away(shard_of, length):
    draw = np.random.default_rng(11)
    sizes = draw.lognormal(4, 0.8, 800).astype(int) + 2
    documents = [np.clip(draw.lognormal(2.9, 0.7, size), 1, 300).astype(int).tolist() for size in sizes]
    assert best_accuracy(shard_of(documents[:400]), shard_of(documents[400:]), length) <= 0.52


@pytest.fixture(scope="module")
def articles(example_data) -> list[list[int]]:
    """Tokens, about, of each sentence of each article."""
    documents: list[list[int]] = [[]]
    with gzip.open(example_data / "pmc-rct-text" / "validation.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            words = len(re.findall(r"\w{1,7}|[^\w\s]", line))
            if words:
                documents[-1].append(words)
            elif documents[-1]:
                documents.append([])
    return [document for document in documents if document]


@pytest.mark.parametrize("length", [64, 128, 512])
def test_lengths_of_clinical_articles_do_not_give_the_label_away(shard_of, articles, length):
    half = len(articles) // 2
    assert best_accuracy(shard_of(articles[:half]), shard_of(articles[half:]), length) <= 0.52
