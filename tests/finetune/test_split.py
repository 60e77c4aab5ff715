"""What is held back."""

import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.rows import Example
from finetune.split import split as split_by

split = partial(split_by, stratum=lambda row: row.label)


def rows_of(texts_and_labels, name="rows"):
    return [Example(f"{name}:{n}", text, None, label) for n, (text, label) in enumerate(texts_and_labels, 1)]


def numbered(count, label):
    return [(f"{label} {number}", label) for number in range(count)]


# Few letters, so that texts repeat, within a class and across classes.
examples = st.lists(
    st.builds(
        Example,
        place=st.uuids().map(str),
        text=st.text("ab", min_size=1, max_size=4),
        text_pair=st.sampled_from([None, "x", "y"]),
        label=st.sampled_from(["p", "q", "r"]),
    ),
    max_size=60,
    unique_by=lambda example: example.place,
)


@given(examples, st.permutations(range(60)))
def test_what_is_held_back_depends_on_the_texts_alone(rows, order):
    rest, held = split(rows, 0.1, "validation")
    shuffled = [rows[i] for i in order if i < len(rows)]
    other_rest, other_held = split(shuffled, 0.1, "validation")
    assert set(other_rest) == set(rest) and set(other_held) == set(held)


@given(examples)
def test_nothing_is_lost_doubled_or_on_both_sides(rows):
    rest, held = split(rows, 0.1, "validation")
    assert Counter(rest) + Counter(held) == Counter(rows)
    places = [row.place for row in rows]
    for part in (rest, held):
        order = [places.index(row.place) for row in part]
        assert order == sorted(order)
    contents = [{(row.text, row.text_pair) for row in part} for part in (rest, held)]
    assert contents[0].isdisjoint(contents[1])


@given(st.lists(st.integers(1, 45), min_size=1, max_size=4))
def test_a_tenth_of_each_class_is_held_back(sizes):
    rows = rows_of(pair for label, size in enumerate(sizes) for pair in numbered(size, str(label)))
    held = Counter(row.label for row in split(rows, 0.1, "validation")[1])
    for label, size in enumerate(sizes):
        if size == 1:
            assert held[str(label)] == 0
        else:
            assert held[str(label)] >= 1 and abs(held[str(label)] - size / 10) < 1


def test_equal_texts_count_once():
    rows = rows_of([*numbered(20, "a"), *[("a 7", "a")] * 500, *numbered(20, "b")])
    rest, held = split(rows, 0.1, "validation")
    distinct = {(row.text, row.label) for row in held}
    assert Counter(label for _, label in distinct) == {"a": 2, "b": 2}
    assert sum(row.text == "a 7" for row in rest) == 501


def test_a_text_of_many_copies_is_held_back_where_there_is_no_other():
    rows = rows_of([*[("x", "a")] * 9, *[("y", "a")] * 9, *numbered(20, "b")])
    rest, held = split(rows, 0.1, "validation")
    assert Counter(row.label for row in held) == {"a": 9, "b": 2}


grouped = st.lists(
    st.builds(
        Example,
        place=st.uuids().map(str),
        text=st.text("ab", min_size=1, max_size=4),
        label=st.sampled_from(["p", "q", "r"]),
        group=st.sampled_from([None, *"ghijklm"]),
    ),
    max_size=60,
    unique_by=lambda example: example.place,
)


@given(grouped, st.permutations(range(60)))
def test_a_group_is_on_one_side(rows, order):
    rest, held = split(rows, 0.1, "validation")
    assert Counter(rest) + Counter(held) == Counter(rows)
    groups = [{row.group for row in part} - {None} for part in (rest, held)]
    assert groups[0].isdisjoint(groups[1])
    texts = [{row.text for row in part if row.group is None} for part in (rest, held)]
    assert texts[0].isdisjoint(texts[1])
    labels = [{row.label for row in part} for part in (rest, held)]
    assert labels[1] <= labels[0], "a class is left that nothing can be learned of"
    shuffled = split([rows[i] for i in order if i < len(rows)], 0.1, "validation")
    assert [set(part) for part in shuffled] == [set(rest), set(held)]


def test_groups_of_a_tenth_of_the_texts_are_held_back():
    rows = [
        Example(f"rows:{patient}.{n}", f"{patient} {n}", None, "ab"[n % 2], str(patient))
        for patient in range(100)
        for n in range(patient % 5 + 1)
    ]
    held = split(rows, 0.1, "validation")[1]
    assert 0.1 <= len(held) / len(rows) <= 0.1 + 2 * 5 / len(rows)
    assert {row.label for row in held} == {"a", "b"} and 4 < len({row.group for row in held}) < 40


def of_groups(names, labels_of):
    """A text of each label of each group."""
    return [
        Example(f"{name}:{label}", f"{label} of {name}", None, label, name)
        for name, labels in zip(names, labels_of, strict=True)
        for label in labels
    ]


@pytest.mark.parametrize("number", range(20))
def test_groups_of_several_classes(number):
    """Names decide which groups are held back; whichever it is, no class goes whole, and rare ones are judged."""
    few = of_groups([f"{number}.{n}" for n in range(4)], ["ay", "az", "by", "bz"])
    rest, held = split(few, 0.1, "validation")
    assert {row.label for row in rest} == {"a", "b", "y", "z"} and "a" in {row.label for row in held}
    many = of_groups([f"{number}.{n}" for n in range(40)], ["az", "az", *["a"] * 38])
    rest, held = split(many, 0.1, "validation")
    assert [Counter(row.label for row in part)["z"] for part in (rest, held)] == [1, 1]


@pytest.mark.parametrize(("groups", "size", "classes"), [(10, 60, 20), (20, 50, 40), (100, 20, 30)])
def test_large_groups_of_many_classes_are_not_held_back_for_each_of_them(groups, size, classes):
    random.seed(0)
    weights = [1 / (number + 1) for number in range(classes)]
    rows = [
        Example(
            f"{group}.{n}", f"text {n} of {group}", None, str(random.choices(range(classes), weights)[0]), str(group)
        )
        for group in range(groups)
        for n in range(size)
    ]
    rest, held = split(rows, 0.1, "validation")
    assert 0.1 <= len(held) / len(rows) < 0.1 + size / len(rows)
    assert {row.label for row in rest} == {row.label for row in rows}
    assert 0.6 * classes <= len({row.label for row in held}), "most classes are judged"


def test_a_large_group_is_learned_from():
    rows = [Example(f"rows:{n}", f"text {n}", None, "ab"[n % 2], str(max(0, n - 60))) for n in range(100)]
    rest, held = split(rows, 0.1, "validation")
    assert sum(row.group == "0" for row in rest) == 61 and 10 <= len(held) <= 12
    # Also where all the small ones are fewer than a tenth.
    sizes = {"m": 45, "n": 45, "o": 2, "p": 2, "q": 2}
    sites = [
        Example(f"{name}:{n}", f"{name} {n}", None, "ab"[n % 2], name) for name in sizes for n in range(sizes[name])
    ]
    assert len(split(sites, 0.1, "validation")[1]) == 6


def test_other_classes_and_purposes():
    mine = rows_of(numbered(200, "a"))
    alone = split(mine, 0.1, "validation")[1]
    beside = split([*rows_of(numbered(90, "b"), "others"), *mine], 0.1, "validation")[1]
    assert alone == [row for row in beside if row.label == "a"]
    assert alone != split(mine, 0.1, "test")[1]
    renamed = [Example(row.place, row.text, None, "z") for row in mine]
    assert [row.text for row in split(renamed, 0.1, "validation")[1]] == [row.text for row in alone]
