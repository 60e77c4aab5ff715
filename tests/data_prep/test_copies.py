"""Held-out tokens that stand in the training text too, against a comparison of all runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import copies
from data_prep.copies import RUN, copied_tokens
from data_prep.prepared import Shard


def shard_of(documents: list[list[int]], index: int = 0) -> Shard:
    """A shard of documents with sentences of up to seven tokens."""
    ids, sentences, starts = [], [0], [0]
    for document in documents:
        for start in range(0, len(document), 7):
            ids += document[start : start + 7]
            sentences.append(len(ids))
        starts.append(len(sentences) - 1)
    return Shard(index, np.array(ids, dtype=np.uint16), np.array(sentences), np.array(starts))


def by_comparison(train: list[list[int]], held_out: list[list[int]]) -> list[bool]:
    known = {tuple(text[i : i + RUN]) for text in train for i in range(len(text) - RUN + 1)}
    marks = []
    for text in held_out:
        copied = [False] * len(text)
        for i in range(len(text) - RUN + 1):
            if tuple(text[i : i + RUN]) in known:
                copied[i : i + RUN] = [True] * RUN
        marks += copied
    return marks


pieces = st.sampled_from([list(range(start, start + length)) for start in (5, 100, 900) for length in (3, 9, 16, 30)])
texts = st.lists(st.lists(pieces, min_size=1, max_size=4).map(lambda found: sum(found, [])), min_size=1, max_size=5)


@settings(max_examples=150)
@given(texts, texts, st.sampled_from([1 << 20, 40, 7]))
def test_the_marked_tokens_are_those_of_equal_runs(train, held_out, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_TOKENS_AT_ONCE", at_once)
        found = copied_tokens([shard_of(train[:2]), shard_of(train[2:] or [[1]], 1)], [shard_of(held_out)])
    assert [mark for marks in found for mark in marks.tolist()] == by_comparison(train, held_out)


def test_a_run_of_fifteen_is_none_and_a_run_over_two_documents_is_none():
    run = list(range(10, 26))
    assert copied_tokens([shard_of([run])], [shard_of([[1, *run, 2], run[:-1]])])[0].sum() == RUN
    assert not copied_tokens([shard_of([run[:8], run[8:]])], [shard_of([run])])[0].any()
    assert not copied_tokens([shard_of([run])], [shard_of([run[:8], run[8:]])])[0].any()
