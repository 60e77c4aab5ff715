"""Labelled files as a dataset, and what is said about the texts."""

import os
from collections import Counter
from dataclasses import replace

import pytest

from finetune.dataset import read_dataset
from finetune.rows import BadRows, Columns, Example, example_of, part_of
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks.classification import Classification
from finetune.tasks.selection import TASKS


def numbered(count, label):
    return [(f"{label} {number}", label) for number in range(count)]


def json_rows(texts_and_labels):
    return [{"text": text, "label": label} for text, label in texts_and_labels]


def read(write_rows, train, validation=None, test=None, **changes):
    paths = {"train": write_rows(json_rows(train), "train.jsonl")}
    for name, rows in (("validation", validation), ("test", test)):
        if rows is not None:
            paths[name] = write_rows(json_rows(rows), f"{name}.jsonl")
    return read_dataset(FinetuneSettings(model="none", **paths, **changes))


TRAIN = [*numbered(40, "a"), *numbered(20, "b")]


def test_three_files(write_rows, capsys):
    dataset = read(write_rows, TRAIN, [("v", "b"), ("w", "a")], [("t", "b")])
    assert [(row.text, row.label) for row in dataset.train] == TRAIN
    assert [row.place for row in dataset.validation] == ["validation.jsonl:1", "validation.jsonl:2"]
    assert [row.text for row in dataset.test] == ["t"] and dataset.task.labels == ["a", "b"]
    assert capsys.readouterr().out.splitlines() == [
        'Task: classification, as "label" holds one class a row (--task names another).',
        'Columns: texts in "text", labels in "label".',
        "Texts: 60 for training, 2 for validation, 1 for test.",
        "2 classes: a 40, b 20.",
        "Positive class: b (the other: --positive).",
    ]


def test_without_validation_a_tenth_of_each_class(write_rows, capsys):
    dataset = read(write_rows, TRAIN)
    assert Counter(row.label for row in dataset.validation) == {"a": 4, "b": 2}
    assert len(dataset.train) == 54 and dataset.test == []
    assert "Texts: 54 for training, 6 for validation.\n" in capsys.readouterr().out


def test_whole_numbers_stay_in_order(write_rows):
    train = [(f"{label} {n}", label) for label in (10, 9, -1) for n in range(9)]
    dataset = read(write_rows, train, [("x", 9.0)])
    assert dataset.task.labels == ["-1", "9", "10"] and dataset.validation[0].label == "9"


def test_rare_classes_are_named(write_rows, capsys):
    read(write_rows, [*TRAIN, *numbered(8, "enough"), *numbered(7, "few"), ("c", "one")], [("v", "b")])
    said = capsys.readouterr().out
    assert "Fewer than 8 training texts: few, one. Expect little of such classes.\n" in said


def test_many_classes_are_not_all_listed(write_rows, capsys):
    read(write_rows, [pair for n in range(13) for pair in numbered(8 + n, f"c{n:02}")], [("v", "c01")])
    said = capsys.readouterr().out
    assert "13 classes: c12 20, c11 19," in said and "c01 9 and 1 more." in said and "c00" not in said


def test_overlap_and_contradictions_are_said(write_rows, capsys):
    train = [*TRAIN, ("both", "a"), ("both", "b"), ("both", "b"), ("c", "a"), ("c", "b")]
    read(write_rows, train, [("a 1", "a"), ("a 2", "b"), ("new", "a")], [("both", "a"), ("other", "b")])
    said = capsys.readouterr().out
    assert "3 texts occur with several labels.\n" in said
    assert "2 of 3 validation texts occur in training too: the result on those means little. " in said
    assert "1 of 2 test texts occur in training too: the result on those means little. " in said
    assert "occur in validation too" not in said


def test_an_overlap_of_validation_and_test_is_said(write_rows, capsys):
    read(write_rows, TRAIN, [("v", "a"), ("w", "b")], [("w", "a"), ("x", "b"), ("w", "b")])
    assert "2 of 3 test texts occur in validation too: the result on those means little. " in capsys.readouterr().out


def test_a_column_of_names_is_no_column_of_classes(write_rows):
    with pytest.raises(FinetuneError, match='"label" of .* has 60 different labels in 70 rows.*--label-column'):
        read(write_rows, [(f"text {n}", f"name {n % 60}") for n in range(70)])


def test_a_clean_set_is_not_warned_of(write_rows, capsys):
    read(write_rows, [*TRAIN, ("a 1", "a")], None, [("t", "a")])
    said = capsys.readouterr().out
    assert "several labels" not in said and "occur in training" not in said


@pytest.mark.parametrize("name", ["validation", "test"])
def test_an_unknown_label_is_refused_or_skipped(write_rows, capsys, name):
    rows = {name: [("v", "a"), ("w", "zebra")]}
    with pytest.raises(FinetuneError, match=rf"^{name}\.jsonl:2 has the label 'zebra', .*\(a, b\)"):
        read(write_rows, TRAIN, **rows)
    dataset = read(write_rows, TRAIN, **rows, skip_bad_rows=True)
    assert [row.text for row in getattr(dataset, name)] == ["v"]
    assert f"Bad rows skipped: 1 (the first: {name}.jsonl:2 has the label 'zebra'" in capsys.readouterr().out


def test_a_file_without_usable_rows_is_refused(write_rows):
    with pytest.raises(FinetuneError, match=r"test\.jsonl has no usable row: give another --test"):
        read(write_rows, TRAIN, None, [("t", "zebra")], skip_bad_rows=True)


def test_too_few_texts_to_hold_some_back(write_rows):
    with pytest.raises(FinetuneError, match="too few different texts .*--validation"):
        read(write_rows, [("x", "a"), ("y", "b")])


def test_the_builtin_texts_are_held_back_by_themselves(write_rows):
    with pytest.raises(FinetuneError, match="--test builtin: .* held out anyway"):
        read_dataset(FinetuneSettings(model="none", train=write_rows(json_rows(TRAIN)), test="builtin"))


def test_further_files_need_the_columns_of_the_first(write_rows, tmp_path):
    train = write_rows(json_rows(TRAIN))
    other = write_rows([{"text": "v", "category": "a"}], "other.jsonl")
    with pytest.raises(FinetuneError, match='other.jsonl has no column "label" among category, text: call'):
        read_dataset(FinetuneSettings(model="none", train=train, validation=other))


def test_the_groups_of_a_column(write_rows, capsys):
    """Patients of four rows, and rows of nobody: held back together, and said where files share a patient."""

    def letters(name, patients):
        return [{"text": f"{name} {p} {n}", "label": "ab"[n % 2], "who": p} for p in patients for n in range(4)]

    rows = [*letters("train", range(30)), *[{"text": f"of nobody {n}", "label": "a"} for n in range(5)]]
    settings = FinetuneSettings(model="none", train=write_rows(rows), group_column="who")
    dataset = read_dataset(settings)
    said = capsys.readouterr().out
    assert 'Columns: texts in "text", labels in "label", groups in "who".\n' in said
    assert '5 texts have no "who": each counts as a group of its own.\n' in said and "occurs in" not in said
    learned, held = ({row.group for row in part} - {None} for part in (dataset.train, dataset.validation))
    assert learned.isdisjoint(held) and len(learned) > len(held) > 1

    test = write_rows(letters("test", [float(min(learned)), *map(int, sorted(held)[:2]), 30]), "test.jsonl")
    assert {row.group for row in read_dataset(replace(settings, test=test)).test} == {
        min(learned), *sorted(held)[:2], "30"
    }  # fmt: skip
    said = capsys.readouterr().out
    for count, where in ((4, "training"), (8, "validation")):
        assert f'{count} of 16 test texts are of a "who" that occurs in {where} too: the result on those is' in said

    with pytest.raises(FinetuneError, match='no column "whom" among text, label, who: did you mean --group-column who'):
        read_dataset(replace(settings, group_column="whom"))
    other = write_rows([{"text": "t", "label": "a"}], "other.jsonl")
    with pytest.raises(FinetuneError, match=r'other\.jsonl has no column "who"'):
        read_dataset(replace(settings, test=other))


def test_groups_and_parts_are_needed_where_they_are_used(write_rows, capsys):
    """Parts in the texts of the final results; groups there too, and where texts are held back."""

    def letters(name, **columns):
        return write_rows([{"text": f"{name} {n}", "label": "ab"[n % 2]} | {key: f"{key} {n % 3}" for key in columns}
                           for n in range(30)], f"{name}.jsonl")  # fmt: skip

    plain, grouped, full = letters("plain"), letters("grouped", who=1), letters("full", who=1, site=1)
    given = {"model": "none", "group_column": "who", "report_by": "site"}
    dataset = read_dataset(FinetuneSettings(train=grouped, test=full, **given))
    assert {row.part for row in dataset.test} == {"site 0", "site 1", "site 2"} and dataset.columns.part == "site"
    assert {row.group for row in dataset.train} <= {"who 0", "who 1", "who 2"}
    dataset = read_dataset(FinetuneSettings(train=plain, validation=plain, test=full, **given))
    assert {row.group for row in dataset.test} == {"who 0", "who 1", "who 2"}
    assert 'have no "who"' not in capsys.readouterr().out
    for files, refusal in (
        (
            {"train": plain, "test": full},
            'plain.jsonl has no column "who" among text, label: pass one of them as --gro',
        ),
        (
            {"train": plain, "validation": full, "test": grouped},
            r'grouped.jsonl has no column "site" .* --report-by, or',
        ),
        (
            {"train": plain, "validation": plain, "test": plain},
            r'plain.jsonl has no column "who" .* --group-column, or',
        ),
        ({"train": grouped, "validation": grouped}, 'grouped.jsonl has no column "site"'),
        ({"train": full, "test": plain}, 'plain.jsonl has no column "who" among label, text: call its columns as in'),
    ):
        with pytest.raises(FinetuneError, match=refusal):
            read_dataset(FinetuneSettings(**files, **given))


@pytest.mark.parametrize(("task", "labels"), [("regression", [1, 2.5]), ("multi-label", [["a"], ["b"]]),
                                              ("classification", ["a", "b"])])  # fmt: skip
def test_a_label_is_needed_also_where_scores_are_given_by_it(task, labels, write_rows):
    rows = [{"text": f"text {n}", "label": labels[n % 2]} for n in range(40)]
    train, without = write_rows(rows), write_rows([{"text": "one"}], "without.jsonl")
    settings = FinetuneSettings(model="none", task=task, train=train, label_column="label", report_by="label")
    with pytest.raises(FinetuneError, match=r'without\.jsonl has no column "label" among text'):
        read_dataset(replace(settings, validation=without, test=train))


def test_no_task_is_found_in_a_column_that_is_not_there(write_rows, capsys):
    settings = FinetuneSettings(model="none", train=write_rows(json_rows(TRAIN)), label_column="coarse")
    with pytest.raises(FinetuneError, match='has no column "coarse" among text, label'):
        read_dataset(settings)
    assert "coarse" not in capsys.readouterr().out


def test_why_no_group_can_be_held_back_is_said(write_rows):
    rows = [{"text": f"text {n}", "label": f"only {n % 3}" if n < 3 else "ab"[n % 2], "site": n % 3} for n in range(60)]
    settings = FinetuneSettings(model="none", train=write_rows(rows), group_column="site")
    with pytest.raises(FinetuneError, match='cannot be split, as each value of "site" has a class that no other has'):
        read_dataset(settings)
    with pytest.raises(FinetuneError, match='too few different values of "site"'):
        read_dataset(replace(settings, train=write_rows([row | {"site": 1} for row in rows])))


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"classification", "similarity"}))
def test_the_builtin_texts_are_for_classes(task):
    with pytest.raises(FinetuneError, match=f"the built-in texts have no labels for --task {task}: give --train"):
        read_dataset(FinetuneSettings(model="none", task=task))


def test_where_no_text_may_be_shown_names_of_columns_are_not(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("Mrs Quixbert fell,ward\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40)))

    def refusal(**changes) -> str:
        with pytest.raises(FinetuneError) as refused:
            read_dataset(FinetuneSettings(model="none", train=str(table), **changes))
        return str(refused.value)

    for changes in ({}, {"label_column": "ward"}, {"label_column": "ward", "text_column": ("letter",)}):
        assert "Quixbert" not in refusal(show_text="no", **changes)
    assert "Quixbert" in refusal()
    named = {"text_column": ("Mrs Quixbert fell",), "label_column": "ward", "show_text": "no"}
    assert len(read_dataset(FinetuneSettings(model="none", train=str(table), **named)).train) == 36


def test_one_of_two_groups_is_said(write_rows, capsys):
    rows = [{"text": f"{n}", "label": "ab"[n % 2], "who": n < 30} for n in range(52)]
    dataset = read_dataset(FinetuneSettings(model="none", train=write_rows(rows), group_column="who"))
    assert len(dataset.validation) == 22
    assert '22 of 52 texts are held back, as those of one "who" stay together: give --val' in capsys.readouterr().out


def test_the_column_that_shows_the_task_is_that_of_the_labels(write_rows):
    def settings(row):
        return FinetuneSettings(model="none", train=write_rows([row(number) for number in range(40)]))

    unsure = read_dataset(settings(lambda n: {"text": f"text {n}", "label": n + 0.5, "score": n % 7 / 7}))
    assert unsure.task.name == "regression" and unsure.columns.label == "label"
    spans = [[0, 4, "thing"]]
    doccano = read_dataset(settings(lambda n: {"text": f"text {n}", "label": spans, "tags": ["batch1", "urgent"]}))
    assert doccano.task.name == "tagging" and doccano.columns.label == "label"
    # What is a name and no class is left to a person.
    with pytest.raises(FinetuneError, match="pass --label-column"):
        read_dataset(settings(lambda n: {"text": f"text {n}", "score": n % 5}))


def test_texts_in_the_place_of_labels_are_not_shown(write_rows):
    texts = [f"Mrs Quixbert number {n} fell in the night and was found" for n in range(4)]
    train = write_rows([{"text": f"{n}", "label": texts[n % 4]} for n in range(40)])
    with pytest.raises(FinetuneError, match="holds texts where labels should be") as refusal:
        read_dataset(FinetuneSettings(model="none", train=train, show_text="no"))
    assert "Quixbert" not in str(refusal.value)
    assert read_dataset(FinetuneSettings(model="none", train=train)).task.labels == texts
    alone = write_rows([{"text": "x", "label": texts[0]}], "alone.jsonl")
    with pytest.raises(FinetuneError, match="have only one label: a classifier needs") as refusal:
        read_dataset(FinetuneSettings(model="none", train=alone, show_text="no"))
    short = write_rows(json_rows(TRAIN), "short.jsonl")
    with pytest.raises(FinetuneError, match="has a label that does not occur in training") as refusal:
        read_dataset(FinetuneSettings(model="none", train=short, test=train, show_text="no"))
    assert "Quixbert" not in str(refusal.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_of_labelled_rows_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(FinetuneError, match=r"rows\.jsonl is no file but a pipe, and is read several times"):
        read_dataset(FinetuneSettings(train=str(tmp_path / "rows.jsonl")))


def test_a_rejected_row_is_left_out_of_training_and_answered():
    """A row that was rejected as it was annotated is left out of training, and is answered as any other."""
    row, bad = {"text": "a", "label": "b", "spans": [], "answer": "reject"}, BadRows(skip=False)
    assert example_of(Classification(), "", row, Columns(("text",)), bad) == Example("", "a") and bad.left_out == 0
    assert example_of(Classification(), "", row, Columns(("text",), "label"), bad) is None and bad.left_out == 1


def test_white_space_does_not_part_a_part():
    assert part_of({"site": " the  north\n"}, "site") == "the north"
    assert part_of({"site": " "}, "site") is None
