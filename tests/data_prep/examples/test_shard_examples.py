"""The examples of a shard: computed in any epoch, and read where they are stored."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from data_prep.examples.packing import HELD_OUT_SEED, ShardExamples
from data_prep.preparation import prepare
from data_prep.prepared import PreparedCorpus
from data_prep.settings import ExampleSettings, PrepSettings

LENGTH, SEED = 32, 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus")
    draw = np.random.default_rng(0)
    words = "the heart rate of a patient was measured before and after treatment".split()
    lines = [" ".join(draw.choice(words, draw.integers(3, 9))) + "." for _ in range(600)]
    (path / "notes.txt").write_text("\n\n".join("\n".join(lines[n : n + 6]) for n in range(0, 600, 6)))
    settings = PrepSettings(corpus=(str(path / "notes.txt"),), workers=1)
    return prepare(settings, ExampleSettings(sequence_length=LENGTH, seed=SEED), path / "prepared")


def equal(one, other):
    columns = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in columns)


@pytest.mark.parametrize(("part", "seed"), [("train", SEED), ("validation", HELD_OUT_SEED)])
def test_what_is_read_is_what_is_computed(corpus, part, seed):
    read = ShardExamples.of(corpus, part, LENGTH, seed)
    computed = replace(read, stored=())
    assert len(read.stored) == len(read.shards)
    for index, epoch in product(range(len(read)), (0, 1)):
        assert equal(read(index, epoch), computed(index, epoch))
    assert not equal(read(0, 0), read(0, 1))


def test_the_first_epoch_is_read_and_no_other(corpus):
    read = ShardExamples.of(corpus, "train", LENGTH, SEED)
    mirrored = [{name: column[::-1] for name, column in columns.items()} for columns in read.stored]
    changed = replace(read, stored=mirrored)
    assert np.array_equal(changed(0, 0).a_start, read(0, 0).a_start[::-1])
    assert equal(changed(0, 1), read(0, 1))


@pytest.mark.parametrize("asked", [{"sequence_length": 30}, {"seed": SEED + 1}, {"next_sentence": False}])
def test_other_pairs_than_the_stored_ones_are_computed(corpus, asked):
    found = ShardExamples.of(corpus, "train", **{"sequence_length": LENGTH, "seed": SEED, **asked})
    assert not found.stored
    assert found(0).lengths().max() <= asked.get("sequence_length", LENGTH)


def test_the_stored_pairs_of_another_version_are_not_read(corpus):
    other = PreparedCorpus(corpus.folder)
    other.manifest = corpus.manifest | {"pairs": 1}
    assert ShardExamples.of(corpus, "train", LENGTH, SEED).stored
    assert not ShardExamples.of(other, "train", LENGTH, SEED).stored
