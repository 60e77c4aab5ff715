"""Answers in rows: the forms of SQuAD, rows of all kinds that cannot be used, and where they are."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from finetune.dataset import read_dataset
from finetune.questions.answers import answers_of, are_answers, flat_rows
from finetune.questions.best_answers import WIDTH
from finetune.rows import BadRows, Columns, Example, read_rows, table_rows
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks import HeldOut
from finetune.tasks.question_answering import QuestionAnswering
from finetune.tasks.selection import kind_of_labels

CONTEXT = "The heart rate was 70, then 80."
COLUMNS = Columns(("question", "context"), "answers")


def row_of(answers, context=CONTEXT, question="How fast?", **more):
    return {"question": question, "context": context, "answers": answers, **more}


ONE = {"text": "70", "answer_start": 19}
HOSTILE = [
    (row_of([ONE], question=""), 'an empty "question"'),
    (row_of([ONE], question=None), 'no "question"'),
    (row_of([ONE], question=["How", "fast"]), 'a list in "question"'),
    (row_of([], context=""), 'an empty "context"'),
    (row_of([], context=" \n"), 'an empty "context"'),
    (row_of([], context=7), 'a number in "context"'),
    (row_of(None), 'no "answers" .*an empty list'),
    (row_of(" "), 'no "answers"'),
    (row_of("70"), 'a text in "answers", where answers should be'),
    (row_of("seventy"), 'a text in "answers", where answers should be'),
    (row_of("[[["), 'a text in "answers", where answers should be'),
    (row_of(["70"]), 'a text in "answers", where answers should be'),
    (row_of(7.5), 'a number in "answers"'),
    (row_of(float("nan")), 'NaN in "answers"'),
    (row_of({"text": "70"}), 'an object in "answers"'),
    (row_of({"text": ["70", "80"], "answer_start": [19]}), "2 texts and 1 places"),
    (row_of([{"answer_start": 19}]), "an answer in .* without a text"),
    (row_of([{"text": 70, "answer_start": 19}]), "an answer in .* without a text"),
    (row_of([{"text": "", "answer_start": -1}]), "an empty answer"),
    (row_of([{"text": "  ", "answer_start": 3}]), "an empty answer"),
    (row_of([{"text": "70"}]), "without a whole number"),
    (row_of([{"text": "70", "answer_start": "19"}]), "without a whole number"),
    (row_of([{"text": "70", "answer_start": True}]), "without a whole number"),
    (row_of([{"text": "70", "answer_start": 19.5}]), "without a whole number"),
    (row_of([{"text": "70", "answer_start": float("inf")}]), "without a whole number"),
    (row_of([{"text": "70", "answer_start": 18}]), "not at character 18 .* but at 19$"),
    (row_of([{"text": "70", "answer_start": -12}]), "not at character -12 .* but at 19$"),
    (row_of([{"text": "70", "answer_start": 10**30}]), "but at 19$"),
    (row_of([{"text": "80.", "answer_start": 29}]), "not at character 29 .* but at 28$"),
    (row_of([{"text": "seventy", "answer_start": 19}]), "nor anywhere in its 31 characters$"),
    (row_of([{"text": "a", "answer_start": 0}]), "but at several others$"),
    (row_of([{"text": "then 80. And", "answer_start": 23}]), "nor anywhere"),
    (row_of([ONE, {"text": "80", "answer_start": 0}]), "not at character 0"),
    (row_of([ONE], is_impossible=True), "said to be impossible"),
    (row_of([], context="x" * (2**24 + 1)), "16,777,217 characters, and 16,777,216"),
]


@pytest.mark.parametrize(("row", "sentence"), HOSTILE)
def test_rows_that_cannot_be_used_are_said(row, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        QuestionAnswering().example("x:1", row, COLUMNS)
    # What a row holds may be nobody's business.
    assert "seventy" not in str(caught.value) and "How" not in str(caught.value)


FORMS = [
    {"text": ["70", "heart rate"], "answer_start": [19, 4]},
    [ONE, {"text": "heart rate", "answer_start": 4, "more": 1}],
    json.dumps([ONE, {"text": "heart rate", "answer_start": 4}]),
    json.dumps({"text": ["70", "heart rate"], "answer_start": [19.0, 4.0]}),
]


@pytest.mark.parametrize("answers", FORMS)
def test_all_forms_are_the_same_answers(answers):
    assert are_answers(answers)
    example = QuestionAnswering().example("x:1", row_of(answers), COLUMNS)
    assert example.label == ((19, 21), (4, 14)) and (example.text, example.text_pair) == ("How fast?", CONTEXT)


@pytest.mark.parametrize("answers", [[], {"text": [], "answer_start": []}, "[]", {"text": None, "answer_start": None}])
def test_no_answers_are_no_answer(answers):
    assert answers_of(row_of(answers, is_impossible=True), "answers", CONTEXT) == ()


@pytest.mark.parametrize(("answers", "yes", "no"), [(None, True, False), ("", "True", "False"), (" ", "true", "")])
def test_an_impossible_question_needs_no_answers(answers, yes, no):
    assert answers_of(row_of(answers, is_impossible=yes), "answers", CONTEXT) == ()
    with pytest.raises(ValueError, match='has no "answers"'):
        answers_of(row_of(answers, is_impossible=no), "answers", CONTEXT)
    with pytest.raises(ValueError, match="is said to be impossible, and has an answer"):
        answers_of(row_of([ONE], is_impossible=yes), "answers", CONTEXT)


def test_without_the_column_nothing_is_asked_of_it():
    assert QuestionAnswering().example("x:1", row_of(None), Columns(("question", "context"), None)).label is None


@given(st.text(st.sampled_from("ab é\u0301中😀\u200b\U000e0100.\n"), min_size=1), st.data())
def test_an_answer_that_is_where_it_says_is_found(context, data):
    start = data.draw(st.integers(0, len(context) - 1))
    text = context[start : data.draw(st.integers(start + 1, len(context)))]
    row = row_of([{"text": text, "answer_start": start}], context)
    if not text.strip():
        with pytest.raises(ValueError, match="empty answer"):
            answers_of(row, "answers", context)
        return
    ((begin, end),) = answers_of(row, "answers", context)
    assert (begin, context[begin:end]) == (start + len(text) - len(text.lstrip()), text.strip())


def nested(articles):
    """SQuAD's form of [(title, [(context, [(id, question, answers)])])]."""
    return {"version": "v2.0", "data": [
        {"title": title, "paragraphs": [
            {"context": context, "qas": [
                {"id": name, "question": question, "answers": answers, "is_impossible": not answers,
                 "plausible_answers": [{"text": "80", "answer_start": 28}]}
                for name, question, answers in questions
            ]} for context, questions in paragraphs
        ]} for title, paragraphs in articles
    ]}  # fmt: skip


def test_nested_files_are_flat_rows(tmp_path):
    path = tmp_path / "train.json"
    articles = [
        ("One", [(CONTEXT, [("a", "How fast?", [ONE]), ("b", "How slow?", [])]), ("It.", [("c", "What?", [])])]),
        ("Two", [(CONTEXT, [("d", "And then?", [{"text": "80", "answer_start": 28}])])]),
    ]
    path.write_text(json.dumps(nested(articles)))
    rows = dict(table_rows(str(path), "utf-8"))
    assert list(rows) == ["train.json:1.1.1", "train.json:1.1.2", "train.json:1.2.1", "train.json:2.1.1"]
    assert rows["train.json:1.1.2"] == {
        "title": "One", "context": CONTEXT, "id": "b", "question": "How slow?", "answers": [], "is_impossible": True,
    }  # fmt: skip
    # The same as an article or a paragraph a line, and as flat rows of the Hub.
    lines, flat = tmp_path / "articles.jsonl", tmp_path / "flat.jsonl"
    lines.write_text("".join(json.dumps(article) + "\n" for article in nested(articles)["data"]))
    assert list(dict(table_rows(str(lines), "utf-8")).values()) == list(rows.values())
    flat.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    assert list(dict(table_rows(str(flat), "utf-8")).values()) == list(rows.values())
    # In columns too, of which those that are asked for are read.
    data = nested(articles)["data"]
    for name, nests in (("articles", data), ("paragraphs", [each for one in data for each in one["paragraphs"]])):
        parquet.write_table(pyarrow.Table.from_pylist(nests), tmp_path / f"{name}.parquet")
        examples = [
            [(row.text, row.text_pair, row.label) for row in examples_of(file)]
            for file in (path, tmp_path / f"{name}.parquet")
        ]
        assert examples[0] == examples[1] and len(examples[0]) == 4


def examples_of(path):
    return list(read_rows(QuestionAnswering(), str(path), "utf-8", COLUMNS, BadRows(False)))


def test_a_question_that_is_impossible_is_so_in_columns_too(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row_of([ONE], is_impossible=True)]), path)
    with pytest.raises(FinetuneError, match="is said to be impossible, and has an answer"):
        examples_of(path)


def test_white_space_around_an_answer_is_no_part_of_it():
    answer = {"text": " 80 \r\n", "answer_start": 3}
    assert answers_of({"answers": [answer]}, "answers", "HR: 80 \r\n.") == ((4, 6),)


@pytest.mark.parametrize("damaged", ["x", [1], float("nan"), {}])
def test_a_threshold_that_is_no_number_is_damage(damaged):
    with pytest.raises(FinetuneError, match="null_threshold in finetune.json is no number"):
        QuestionAnswering().with_decision({"null_threshold": damaged})


@pytest.mark.parametrize(("without", "sentence"), [
    (0, "over 0.000, as none of the validation questions lack an answer: "),
    (2, "over 0.000, chosen on the validation texts: "),
    (5, "over 0.000, as all of the validation questions lack an answer: "),
])  # fmt: skip
def test_a_threshold_is_said_to_be_chosen_where_it_was(without, sentence):
    examples = [Example("", "How fast?", CONTEXT, ((19, 21),))] * 3
    shown = HeldOut("test", 1, examples, examples, np.zeros((3, WIDTH), np.float32))
    results = {"unanswerable": {"validation": without, "test": 0}, "rows": {"validation": 5, "test": 3}}
    assert sentence in QuestionAnswering(0.0).tell(Path("out"), results, {}, shown, 1)[0]


def test_flat_rows_of_all_formats_are_the_same_examples(tmp_path):
    rows = [row_of([ONE] if n % 2 else [], question=f"How fast is {n}?", id=str(n)) for n in range(40)]
    of_hub = [
        row | {"answers": {name: [answer[name] for answer in row["answers"]] for name in ("text", "answer_start")}}
        for row in rows
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text(json.dumps({"version": "1", "data": of_hub}))
    parquet.write_table(pyarrow.Table.from_pylist(of_hub), tmp_path / "c.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    with open(tmp_path / "e.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "answers": json.dumps(row["answers"])} for row in of_hub)
    for path in sorted(tmp_path.iterdir()):
        dataset = read_dataset(FinetuneSettings(train=str(path)))
        assert dataset.task.name == "question-answering", path
        found = {(row.text, row.text_pair, row.label) for row in (*dataset.train, *dataset.validation)}
        assert found == {(row["question"], CONTEXT, ((19, 21),) if row["answers"] else ()) for row in rows}, path


def test_what_only_looks_nested_stays_as_it_is():
    for row in ({"paragraphs": ["a text", "another"], "label": "x"}, {"qas": "text"}, {"text": "x"}, {"data": {}}):
        assert list(flat_rows("x:1", row)) == [("x:1", row)]


def test_an_article_without_paragraphs_has_no_question():
    assert not list(flat_rows("x:1", {"title": "a", "paragraphs": []}))
    own = {"question": "How?", "context": "a text", "paragraphs": []}
    assert list(flat_rows("x:1", own)) == [("x:1", own)]


def test_damaged_nests_are_bad_rows(tmp_path):
    paragraphs = [{"context": CONTEXT, "qas": [{"id": "a", "question": "How?", "answers": [ONE]}, "none", {"id": "b"}]},
                  {"context": CONTEXT}, None]  # fmt: skip
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    with pytest.raises(FinetuneError, match=r'train.json:1.1.2 has no "question": mend the row'):
        read_dataset(FinetuneSettings(train=str(path)))
    places = [place for place, _ in table_rows(str(path), "utf-8")]
    assert places == [f"train.json:1.{place}" for place in ("1.1", "1.2", "1.3", "2", "3")]


def test_the_task_and_its_columns_are_found(tmp_path, capsys):
    rows = [row_of([ONE] if number % 2 else [], question=f"How fast is {number}?", id=number) for number in range(40)]
    flat = tmp_path / "flat.jsonl"
    flat.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = read_dataset(FinetuneSettings(train=str(flat)))
    said = capsys.readouterr().out
    assert isinstance(dataset.task, QuestionAnswering) and dataset.columns == COLUMNS and dataset.task.threshold == 0
    assert 'Task: question-answering, as "answers" holds answers with their places' in said
    assert "36 questions on 1 context, 18 of them without an answer." in said
    assert {bool(row.label) for row in dataset.validation} == {True, False}
    always = read_dataset(FinetuneSettings(train=str(flat), task="question-answering", group_column="id"))
    assert always.columns.group == "id"


def test_a_context_can_be_the_group(tmp_path):
    rows = [row_of([ONE], f"{CONTEXT} Patient {number // 5}.", f"How fast is {number}?") for number in range(100)]
    path = tmp_path / "flat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = read_dataset(FinetuneSettings(train=str(path), group_column="context"))
    assert dataset.columns.texts == ("question", "context")
    sides = [{row.text_pair for row in rows} for rows in (dataset.train, dataset.validation)]
    assert sides[0].isdisjoint(sides[1]) and len(dataset.validation) == 10


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([[], [ONE]], "question-answering"),
        ([{"text": [], "answer_start": []}], "question-answering"),
        ([json.dumps([ONE])], "question-answering"),
        ([[{"start": 0, "end": 1, "label": "x"}]], "tagging"),
        ([["x"], []], "multi-label"),
        (["yes", "no"], "classification"),
        (["yes; surely", "no"], "classification"),
        (["no; no", "yes"], "classification"),
        (["a;b", "b;c", "c;a"], "multi-label"),
        (["urgent", "urgent;spam"], "multi-label"),
    ],
)
def test_the_task_is_told_by_the_labels(values, task):
    assert kind_of_labels(values)[0] == task


def test_files_that_hold_no_questions_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "How?", "text": CONTEXT, "title": "x", "answers": [ONE]}) + "\n")
    with pytest.raises(
        FinetuneError, match='no columns "question" and "context".*--text-column with the names of both'
    ):
        read_dataset(FinetuneSettings(train=str(path)))
    with pytest.raises(FinetuneError, match="--text-column with the names of both"):
        read_dataset(FinetuneSettings(train=str(path), text_column=("question",)))
    path.write_text("".join(json.dumps(row_of([], question=f"How {n}?")) + "\n" for n in range(20)))
    with pytest.raises(FinetuneError, match='no question of .* has an answer in "answers"'):
        read_dataset(FinetuneSettings(train=str(path), task="question-answering"))
    path.write_text("".join(json.dumps(row_of([ONE], question=f"How {n}?")) + "\n" for n in range(20)))
    with pytest.raises(FinetuneError, match="--hidden-layers is for other heads"):
        read_dataset(FinetuneSettings(train=str(path), hidden_layers=1))


def test_answers_of_the_example_sets_are_where_they_say(example_data):
    """Of 6,078 and 14,941 questions, counted in their READMEs."""
    for name, counts in (("squad-v2-part", (3367, 1240, 1471)), ("squad-v1.1-part", (4371, 4961, 5609))):
        files = [example_data / name / f"{split}.json" for split in ("train", "validation", "test")]
        if not all(path.exists() for path in files):
            pytest.skip(f"no {name} among the example data sets")
        for path, count in zip(files, counts, strict=True):
            rows = [QuestionAnswering().example(place, row, COLUMNS) for place, row in table_rows(str(path), "utf-8")]
            assert len(rows) == count
            none = sum(not row.label for row in rows)
            expected = {"train": 1823, "validation": 613, "test": 732}[path.stem] if name == "squad-v2-part" else 0
            assert none == expected


def test_labels_are_places_alone():
    """So that nothing that shows labels shows texts."""
    label = QuestionAnswering().example("x:1", row_of([ONE]), COLUMNS).label
    assert np.array(label).dtype.kind == "i"
