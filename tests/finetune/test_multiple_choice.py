"""Multiple choice: rows of all forms, sequences, loss and scores against definitions and transformers, and runs."""

import csv
import itertools
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.batches import BatchMaker
from finetune.choice_metrics import chance, length, similarity
from finetune.choices import continuations, encode_choices, right_choice, usual_choices
from finetune.choose import main as choose
from finetune.dataset import read_dataset
from finetune.mistakes import mistakes_markdown
from finetune.predict import main as predict
from finetune.predictor import Classifier, Ensemble, Predictor
from finetune.rows import Columns, Example
from finetune.run import main
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.split import split
from finetune.tasks import HeldOut
from finetune.tasks.multiple_choice import ChoiceObjective, MultipleChoice, log_softmax_of_rows
from model.huggingface import to_huggingface

TASK = MultipleChoice()
COLUMNS = Columns(("question",), "label", choices=("choices",))
SWAG = Columns(("sent1", "sent2"), "label", choices=("ending0", "ending1", "ending2"))


# --- rows


HOSTILE = [
    ({"choices": ["a", "b"]}, 'has no "question"'),
    ({"question": " ", "choices": ["a", "b"]}, 'has an empty "question"'),
    ({"question": 7, "choices": ["a", "b"]}, 'has a number in "question"'),
    ({"question": "q"}, 'has no choices in "choices", and two are the least'),
    ({"question": "q", "choices": None}, "has no choices"),
    ({"question": "q", "choices": []}, "has no choices"),
    ({"question": "q", "choices": "[]"}, "has no choices"),
    ({"question": "q", "choices": ["a"], "label": 0}, "has one choice in"),
    ({"question": "q", "choices": "a, b", "label": 0}, 'has a text in "choices" where a list of choices should be'),
    ({"question": "q", "choices": "[a, b]", "label": 0}, "has a text in"),
    ({"question": "q", "choices": 7, "label": 0}, "has a number in"),
    ({"question": "q", "choices": {"a": 1}, "label": 0}, "has an object in"),
    ({"question": "q", "choices": ["a", ""], "label": 0}, "has an empty choice"),
    ({"question": "q", "choices": ["a", None], "label": 0}, "has an empty choice"),
    ({"question": "q", "choices": ["a", float("nan")], "label": 0}, "has an empty choice"),
    ({"question": "q", "choices": ["a", 7], "label": 0}, "has a number in"),
    ({"question": "q", "choices": ["a", ["b"]], "label": 0}, "has a list in"),
    ({"question": "q", "choices": ["a b", "c", " a  b"], "label": 0}, "has two equal choices"),
    ({"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "A"]}, "label": "A"}, "1 different labels"),
    ({"question": "q", "choices": {"text": ["a", "b"], "label": ["A"]}, "label": "A"}, "1 different labels"),
    ({"question": "q", "choices": ["a", "b"]}, 'has no "label"'),
    ({"question": "q", "choices": ["a", "b"], "label": ""}, 'has no "label"'),
    ({"question": "q", "choices": ["a", "b"], "label": float("nan")}, 'has no "label"'),
    ({"question": "q", "choices": ["a", "b"], "label": 2}, "the label 2 and 2 choices, which are counted from 0"),
    ({"question": "q", "choices": ["a", "b"], "label": -1}, "the label -1 and 2 choices"),
    ({"question": "q", "choices": ["x", "y"], "label": "2"}, "the label 2 and 2 choices"),
    ({"question": "q", "choices": ["x", "y"], "label": "C"}, 'has a "label" that is none of its 2 choices'),
    ({"question": "q", "choices": ["x", "y"], "label": "X"}, "none of its 2 choices"),
    ({"question": "q", "choices": ["x", "y"], "label": "zzz"}, "none of its 2 choices"),
    ({"question": "q", "choices": ["x", "y"], "label": 0.5}, "which names no choice"),
    ({"question": "q", "choices": ["x", "y"], "label": True}, "true or false in"),
    ({"question": "q", "choices": ["x", "y"], "label": [0]}, "has a list in"),
    ({"question": "q", "choices": ["1", "2"], "label": "1"}, "number or letter of one choice and the text of another"),
    ({"question": "q", "choices": ["B", "A"], "label": "A"}, "number or letter of one choice and the text of another"),
]


@pytest.mark.parametrize(("row", "sentence"), HOSTILE)
def test_rows_that_cannot_be_used_are_said(row, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        TASK.example("x:1", row, COLUMNS)


@pytest.mark.parametrize(("row", "sentence"), [
    ({"ending0": "a", "ending1": "", "ending2": "c", "label": 0}, 'has an empty choice in "ending0" to "ending2"'),
    ({"ending0": "a", "ending1": None, "ending2": " ", "label": 0}, "has one choice in"),
    ({"ending0": "a", "ending1": "b", "ending2": None, "label": 2}, "the label 2 and 2 choices"),
    ({"sent1": "", "ending0": "a", "ending1": "b", "label": 0}, 'has an empty "sent1"'),
    ({"sent2": 7, "ending0": "a", "ending1": "b", "label": 0}, 'has a number in "sent2"'),
])  # fmt: skip
def test_rows_of_a_column_for_each_choice_that_cannot_be_used_are_said(row, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        TASK.example("x:1", {"sent1": "q", "sent2": "s"} | row, SWAG)


@pytest.mark.parametrize(("choices", "label", "place"), [
    (["x", "y", "z"], 1, 1), (["x", "y", "z"], "1", 1), (["x", "y", "z"], 1.0, 1), (["x", "y", "z"], "B", 1),
    (["x", "y", "z"], "1.0", 1),
    (["x", "y", "z"], "b", 1), (["x", "y", "z"], " y ", 1), (["1", "2", "3"], 1, 1), (["2", "1", "3"], "1", 1),
    (["10", "20", "30"], "20", 1), (["a  b", "c"], "a b", 0), (["A", "B"], "B", 1),
    ({"text": ["x", "y"], "label": ["A", "B"]}, "B", 1), ({"text": ["x", "y"], "label": ["1", "2"]}, "1", 0),
    ({"text": ["x", "y"], "label": ["1", "2"]}, 1, 0),
    ([{"label": "A", "text": "x"}, {"label": "B", "text": "y"}], "B", 1),
    ('["x", "y"]', "y", 1), ("['x' 'y']", "y", 1), (["1.5", "2"], "1.5", 0),
    (["0.5", "1.0", "1.5", "2.0"], "2.0", 3), ({"text": ["x", "y"], "label": ["1", "2"]}, "1.0", 0),
])  # fmt: skip
def test_the_right_choice_is_known_by_name_number_letter_or_text(choices, label, place):
    assert TASK.example("x:1", {"question": "q", "choices": choices, "label": label}, COLUMNS).label == place


def test_of_columns_the_last_ones_may_be_empty_and_so_may_the_beginning():
    row = {"sent1": "q", "ending0": "a", "ending1": "b", "ending2": "", "label": 1}
    for nothing in ({}, {"sent2": ""}, {"sent2": " "}, {"sent2": None}, {"sent2": float("nan")}):
        assert TASK.example("x:1", row | nothing, SWAG) == Example("x:1", "q", None, 1, choices=("a", "b"))


def test_columns_of_choices_are_told_by_their_names():
    names = ["id", "answer", "answers", "option_b", "option_a", "option_c", "ending1", "ending7", "sol2", "sol1"]
    assert usual_choices([], names) == ("option_a", "option_b", "option_c")
    assert usual_choices([], ["opa", "opb", "opc", "opd", "cop"]) == ("opa", "opb", "opc", "opd")
    assert usual_choices([], ["answerA", "answerC", "answerD"]) == (), "one is missing"
    assert usual_choices([{"Options": ["a"], "choices": "a"}], ["choices", "Options"]) == ("Options",)


def made(count, first=0):
    """Rows of 2 to 4 choices, of which the right one begins with "heart"."""
    rng, rows = random.Random(first), []
    for number in range(first, first + count):
        choices = [f"{word} {number} rate" for word in ("mask", "7", "was")[: rng.randint(1, 3)]]
        place = rng.randint(0, len(choices))
        choices.insert(place, f"heart {number} rate")
        rows.append({"question": f"the patient {number}", "choices": choices, "label": place})
    return rows


def test_all_forms_of_the_same_rows_are_the_same_examples(tmp_path):
    rows = made(60)
    letters = [{"label": list("ABCD")[: len(r["choices"])], "text": r["choices"]} for r in rows]
    none = {f"ending{place}": "" for place in range(4)}
    numbered = [{f"ending{place}": choice for place, choice in enumerate(r["choices"])} for r in rows]
    contents = {
        "a.jsonl": rows,
        "b.jsonl": [{"question": r["question"], "options": r["choices"], "answer": "ABCD"[r["label"]]} for r in rows],
        "c.jsonl": [{"id": n, "question": r["question"], "choices": each, "answerKey": "ABCD"[r["label"]]}
                    for n, (r, each) in enumerate(zip(rows, letters, strict=True))],
        "d.jsonl": [{"question": r["question"], "choices": r["choices"], "answer": r["choices"][r["label"]]}
                    for r in rows],
        "e.csv": [{"question": r["question"], "choices": json.dumps(r["choices"]), "label": r["label"]} for r in rows],
        "f.csv": [{"sent1": r["question"], "sent2": "", **none, **each, "label": r["label"]}
                  for r, each in zip(rows, numbered, strict=True)],
    }  # fmt: skip
    expected = [(row["question"], tuple(row["choices"]), row["label"]) for row in rows]
    for name, content in contents.items():
        with open(tmp_path / name, "w", newline="") as file:
            if name.endswith(".csv"):
                writer = csv.DictWriter(file, content[0])
                writer.writeheader()
                writer.writerows(content)
            else:
                file.write("".join(json.dumps(row) + "\n" for row in content))
        dataset = read_dataset(FinetuneSettings(train=str(tmp_path / name)))
        found = {(e.text, e.choices, e.label) for e in (*dataset.train, *dataset.validation)}
        assert dataset.task.name == "multiple-choice" and found == set(expected), name
        assert 3 <= len(dataset.validation) <= 9


def test_a_beginning_stands_before_each_choice(write_rows):
    rows = [{"article": f"the patient {n}", "question": f"heart {n}", "options": ["7", "8"], "answer": "B"}
            for n in range(30)]  # fmt: skip
    rows[0]["options"] = ["of", "was"]
    dataset = read_dataset(FinetuneSettings(train=write_rows(rows)))
    assert dataset.columns == Columns(("article", "question"), "answer", choices=("options",))
    (row,) = (row for row in (*dataset.train, *dataset.validation) if row.text.endswith(" 3"))
    assert continuations(row) == ["heart 3 7", "heart 3 8"] and row.choices == ("7", "8") and row.answer == "8"


def test_rows_of_other_tasks_are_not_taken_for_choices(write_rows):
    classes = [{"text": f"heart {n}", "options": ["yes", "no"], "label": ["yes", "no"][n % 2]} for n in range(40)]
    tags = [{"tokens": ["heart", str(n)], "more": ["a", "b"], "tags": ["B-x", "O"]} for n in range(40)]
    words = [{"text": f"heart {n}", "keywords": ["x", f"y{n % 3}"], "label": f"y{n % 3}"} for n in range(40)]
    names = [read_dataset(FinetuneSettings(train=write_rows(rows))).task.name for rows in (classes, tags, words)]
    assert names == ["classification", "tagging", "classification"]


def test_what_lacks_choices_is_one_sentence(write_rows, make_rows):
    with pytest.raises(FinetuneError, match="has no column of choices .* among text, label: call it choices, or"):
        read_dataset(FinetuneSettings(train=write_rows(make_rows(30)), task="multiple-choice"))
    with pytest.raises(FinetuneError, match="x:1 is a line of text and has no choices: give .jsonl"):
        TASK.example("x:1", {"text": "a"}, Columns(("text",), None))


WINOGRANDE = [{"sentence": f"rate {n}", "option1": f"a{n}", "option2": f"b{n}", "answer": str(1 + n % 3 // 2)}
              for n in range(60)]  # fmt: skip


@pytest.mark.parametrize(("change", "first_number"), [
    (lambda row: row, 1),
    (lambda row: row | {"answer": int(row["answer"])}, 1),
    # Columns from 1 and labels from 0, as in PIQA.
    (lambda row: row | {"answer": int(row["answer"]) - 1}, 0),
    (lambda row: row | {"answer": row["option" + row["answer"]]}, 1),
    (lambda row: row | {"answer": "AB"[int(row["answer"]) - 1]}, 1),
    (lambda row: {name.replace("option", "option_").replace("_1", "_0").replace("_2", "_1"): value
                  for name, value in row.items()} | {"answer": int(row["answer"]) - 1}, 0),
])  # fmt: skip
def test_labels_are_the_numbers_of_columns_that_begin_with_1(write_rows, capsys, change, first_number):
    file = write_rows([change(row) for row in WINOGRANDE])
    train = read_dataset(FinetuneSettings(train=file, task="multiple-choice", skip_bad_rows=True)).train
    right = {row["sentence"]: row["option" + row["answer"]] for row in WINOGRANDE}
    assert {row.text: row.answer for row in train}.items() <= right.items() and len({row.label for row in train}) == 2
    said = capsys.readouterr().out
    assert ("numbered from 1" in said) == bool(first_number) and "counted from" not in said


def test_a_sorted_file_shows_its_first_number_behind_hundreds_of_rows(write_rows):
    rows = [{"goal": f"heart {n}", "sol1": f"a {n}", "sol2": f"b {n}", "label": int(n < 300)} for n in range(400)]
    dataset = read_dataset(FinetuneSettings(train=write_rows(rows), task="multiple-choice"))
    assert all(row.label == (int(row.text.split()[1]) < 300) for row in (*dataset.train, *dataset.validation))


def test_a_number_that_no_column_has_is_said():
    columns = Columns(("sentence",), "answer", choices=("option1", "option2"), first_number=1)
    assert TASK.example("x:1", WINOGRANDE[0] | {"answer": "2"}, columns).label == 1
    for number in (0, 3):
        with pytest.raises(ValueError, match=f"the answer {number} and 2 choices, which are counted from 1"):
            TASK.example("x:1", WINOGRANDE[0] | {"answer": number}, columns)


def test_numbers_that_count_from_1_are_noticed(write_rows, capsys):
    rows = [{"question": f"heart {n}", "choices": ["a", f"b{n}", "c"], "label": 1 + n % 2} for n in range(40)]
    read_dataset(FinetuneSettings(train=write_rows(rows)))
    assert "never the first one of its row: numbers of choices count from 0" in (said := capsys.readouterr().out)
    assert "3 choices a row; one at random is right in 0.333" in said
    assert 'Task: multiple-choice, as "label" holds which of "choices" is right (--task names another).' in said
    assert 'Columns: texts in "question", choices in "choices", labels in "label".' in said


def test_copies_of_a_row_stay_together_in_whatever_order_their_choices_stand(write_rows, capsys):
    rows = made(60)
    copies = [{**r, "choices": r["choices"][::-1], "label": len(r["choices"]) - 1 - r["label"]} for r in rows]
    settings_ = FinetuneSettings(train=write_rows(rows + copies))
    dataset = read_dataset(settings_)
    texts = [{row.text for row in part} for part in (dataset.train, dataset.validation)]
    assert texts[0].isdisjoint(texts[1]) and texts[1]
    assert "several labels" not in capsys.readouterr().out
    read_dataset(replace(settings_, test=write_rows(copies[:1], "test.jsonl")))
    said = capsys.readouterr().out
    assert "1 of 1 test texts occur in training too" in said or "1 of 1 test texts occur in validation too" in said
    # Of one question with other choices nothing is the same.
    alike = [Example(f"x:{n}", "which one", None, 0, choices=(f"a{n}", "b")) for n in range(40)]
    assert len(split(alike, 0.1, "validation", TASK.stratum)[1]) == 4


# --- sequences and batches


SENTENCES = st.lists(st.sampled_from(["heart", "rates", "42", "[x]", "zzz", "\u200b", "of."]), max_size=14).map(
    " ".join
)
ROWS = st.lists(
    st.tuples(SENTENCES, st.none() | SENTENCES, st.lists(SENTENCES, min_size=2, max_size=4)),
    min_size=1, max_size=6,
)  # fmt: skip


@given(ROWS, st.integers(8, 30), st.sampled_from(["head", "head-tail"]))
@settings(max_examples=100)
def test_the_texts_are_cut_and_a_choice_only_where_it_does_not_fit(small_tokenizer, rows, size, long_text):
    examples = [Example("", text, stem, 0, choices=tuple(choices)) for text, stem, choices in rows]
    encoded = encode_choices(examples, TASK.targets(examples), small_tokenizer, size, long_text)
    tokenizer, room = small_tokenizer, size - 3
    maker = BatchMaker(encoded, tokenizer, 1)
    sequence = tokens = cut = 0
    long_rows = set()
    for number, row in enumerate(examples):
        text = tokenizer.encode([row.text])[0]
        stem = tokenizer.encode([row.text_pair or ""])[0]
        for place, choice in enumerate(row.choices):
            alone = tokenizer.encode([choice])[0] or [tokenizer.unk_id]
            ids = stem + alone
            # The last tokens of the second text, as many as leave the choice whole.
            kept = [*stem[max(0, len(ids) - room) :], *alone[:room]]
            left = min(len(text), room - len(kept))
            head = left if long_text == "head" or left == len(text) else left // 4
            shown = text[:head] + text[len(text) - (left - head) :] if left > head else text[:head]
            batch = maker.packed(np.array([sequence]))
            expected = [tokenizer.cls_id, *shown, tokenizer.sep_id, *kept, tokenizer.sep_id]
            assert batch.input_ids.tolist() == expected
            assert batch.token_type_ids.tolist() == [0] * (len(shown) + 2) + [1] * (len(kept) + 1)
            assert batch.labels.tolist() == [[number, int(place == 0)]] and batch.places.tolist() == [0]
            tokens, cut = tokens + len(text) + len(ids), cut + len(text) + len(ids) - len(shown) - len(kept)
            long_rows |= {number} if len(text) + len(ids) > room else set()
            sequence += 1
    assert (encoded.num_tokens, encoded.num_cut, encoded.num_long) == (tokens, cut, len(long_rows))
    assert len(encoded.sequences) == sequence and encoded.num_texts == len(rows)


def test_transformers_cuts_the_same(encoder, small_tokenizer):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(encoder)
    examples = [
        Example("", " ".join(["heart", "rates"] * n), None, 0, choices=("7 8", "mask " * 4)) for n in range(1, 9)
    ]
    encoded = encode_choices(examples, TASK.targets(examples), small_tokenizer, 12, "head")
    maker = BatchMaker(encoded, small_tokenizer, 10**9)
    every = [(row.text, choice) for row in examples for choice in row.choices]
    assert encoded.num_long > 3
    for sequence, (text, choice) in enumerate(every):
        expected = theirs(text, choice, truncation="only_first", max_length=12)
        assert maker.packed(np.array([sequence])).input_ids.tolist() == expected["input_ids"]


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(2, 5)), min_size=1, max_size=20), st.integers(1, 150))
@settings(max_examples=100)
def test_the_choices_of_a_row_are_learned_from_in_one_batch_and_read_in_any(small_tokenizer, sizes, limit):
    examples = [Example("", "a " * n, None, 1, choices=tuple(f"b {k}" for k in range(count))) for n, count in sizes]
    encoded = encode_choices(examples, TASK.targets(examples), small_tokenizer, 40, "head")
    maker, texts = BatchMaker(encoded, small_tokenizer, limit), np.arange(len(sizes))[::-2]
    seen = []
    for batch in maker.micro_batches(texts):
        rows = batch.labels[:, 0].tolist()
        whole = [row for row in dict.fromkeys(rows) for _ in range(sizes[row][1])]
        assert rows == whole and batch.num_sequences == len(rows)
        assert batch.num_tokens <= limit or len(set(rows)) == 1
        assert batch.weights.tolist() == [1] * len(rows)
        seen += dict.fromkeys(rows)
    assert sorted(seen) == sorted(texts.tolist())
    read = []
    for items, batch in maker.items_and_batches(texts):
        assert batch.num_tokens <= limit or batch.num_sequences == 1
        assert (encoded.targets[items] == batch.labels.numpy()).all()
        read += items.tolist()
    assert sorted(read) == np.flatnonzero(np.isin(encoded.text, texts)).tolist()
    assert maker.longest(texts) == max(encoded.lengths()[texts])


# --- learning


@given(st.lists(st.lists(st.floats(-50, 50), min_size=1, max_size=5), min_size=1, max_size=8))
@settings(max_examples=40)
def test_the_softmax_is_that_of_each_row(rows):
    scores = torch.tensor([score for row in rows for score in row], dtype=torch.float64, requires_grad=True)
    owners = torch.tensor([7 * number for number, row in enumerate(rows) for _ in row])
    found = log_softmax_of_rows(scores, owners)
    expected = torch.cat([part.log_softmax(0) for part in scores.split([len(row) for row in rows])])
    torch.testing.assert_close(found, expected)
    weights = torch.arange(len(scores), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((each * weights).sum(), scores)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_loss_and_gradients_are_those_of_transformers(encoder, small_tokenizer, tmp_path, one_thread):
    from transformers import AutoModelForMultipleChoice, AutoTokenizer

    examples = [TASK.example("", row, COLUMNS) for row in made(6)]
    model = TASK.build_model(FinetuneSettings(model=str(encoder), dropout=0.0), 3).train()
    model.save_pretrained(tmp_path)
    theirs = AutoModelForMultipleChoice.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    encoded = TASK.encode(examples, small_tokenizer, 48, "head")
    (batch,) = BatchMaker(encoded, small_tokenizer, 10**9).micro_batches(np.arange(6))
    objective = ChoiceObjective()
    assert objective.counts(batch) == {"label": 6.0}
    loss = objective.loss_sums(model, batch)["label"]
    loss.backward()
    total = 0
    for row in examples:
        given_ = tokenizer([row.text] * len(row.choices), list(row.choices), padding=True, return_tensors="pt")
        total = total + theirs(**{k: v[None] for k, v in given_.items()}, labels=torch.tensor([row.label])).loss
    total.backward()
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-5)
    gradients = dict(theirs.named_parameters())
    # The gradients under the names of transformers.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    for name, ours in to_huggingface(model).items():
        torch.testing.assert_close(ours, gradients[name].grad, rtol=1e-3, atol=1e-5, msg=name)


# --- scores


def test_what_says_nothing_of_choices_is_as_good_as_chance():
    """Even where the right choice always stands first; and outputs that are no numbers have no scores."""
    targets = np.array([(n, k == 0) for n in range(40) for k in range(4)])
    found = TASK.scores(targets, np.zeros((160, 1), np.float32))
    assert found == pytest.approx({"accuracy": 0.25, "mrr": (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, "loss": math.log(4)})
    broken = np.zeros((160, 1), np.float32)
    broken[5] = np.nan
    assert all(map(math.isnan, TASK.scores(targets, broken).values()))


@given(st.lists(st.integers(2, 5), min_size=1, max_size=12), st.integers(0, 2**31))
@settings(max_examples=80, deadline=None)
def test_scores_are_those_of_their_definitions(sizes, seed):
    rng = np.random.default_rng(seed)
    outputs = np.round(rng.normal(size=(sum(sizes), 1)), 1).astype(np.float32)
    rights = [int(rng.integers(size)) for size in sizes]
    targets = np.array([(n, k == right) for n, (size, right) in enumerate(zip(sizes, rights)) for k in range(size)])  # noqa: B905
    found, of_rows = TASK.scores(targets, outputs), []
    for scores, right in zip(np.split(outputs[:, 0].astype(float), np.cumsum(sizes)[:-1]), rights, strict=True):
        p = math.exp(scores[right]) / sum(map(math.exp, scores))
        # Every order of the choices, each of equal scores the first one counting as higher.
        ranks = [
            1 + sorted(order, key=lambda place, scores=scores: -scores[place]).index(right)
            for order in itertools.permutations(range(len(scores)))
        ]
        of_rows.append((np.mean([rank == 1 for rank in ranks]), np.mean([1 / rank for rank in ranks]), -math.log(p)))
    expected = dict(zip(("accuracy", "mrr", "loss"), np.mean(of_rows, axis=0), strict=True))
    assert found == pytest.approx(expected, abs=1e-6)
    draws = [rng.integers(0, len(sizes), rng.integers(1, 9)) for _ in range(4)]
    at_once = TASK.scores_of_draws(targets, outputs, draws)
    for number, draw in enumerate(draws):
        drawn_targets, drawn_outputs = TASK.drawn(targets, outputs, draw)
        assert np.bincount(drawn_targets[:, 0]).tolist() == [sizes[row] for row in draw]
        one = TASK.scores(drawn_targets, drawn_outputs)
        assert {name: values[number] for name, values in at_once.items()} == pytest.approx(one, abs=1e-9)


def test_simple_tools_find_shared_words_and_the_longest_choice():
    choices = ("a blue mask", "the red heart", "something quite long")
    rows = [Example("1", "why is the heart red", None, 1, choices=choices)]
    rows.append(Example("2", "7", "of 8", 0, choices=("8 9", "1")))
    (found,) = similarity(rows, [rows])
    assert found.shape == (5, 1) and found[:3, 0].argmax() == 1 and found[0, 0] == 0
    assert length(rows)[:3, 0].argmax() == 2 and length(rows)[3] > length(rows)[4]
    assert TASK.scores(TASK.targets(rows), length(rows))["accuracy"] == 0.5
    assert chance(rows) == pytest.approx((1 / 3 + 1 / 2) / 2)
    wordless = [Example("1", "?", None, 0, choices=("!", "."))]
    assert similarity(wordless, [wordless])[0].tolist() == [[0], [0]]


def test_models_are_unsure_of_a_row_and_doubt_its_label():
    sure, unsure = np.array([[[9.0], [0.0]]] * 2, np.float32), np.array([[[0.0], [0.0]]] * 2, np.float32)
    assert TASK.uncertainty(unsure)[0] == pytest.approx(math.log(2)) and TASK.uncertainty(sure)[0] < 0.01
    other = np.array([[[9.0], [0.0]], [[0.0], [9.0]]], np.float32)
    assert TASK.uncertainty(other)[1] > 0.6 and TASK.uncertainty(unsure)[1] == pytest.approx(0, abs=1e-9)
    assert (
        TASK.doubt(np.array([[4, 0], [4, 1]]), sure[0]) > 0.99 > 0.01 > TASK.doubt(np.array([[4, 1], [4, 0]]), sure[0])
    )


def test_mistakes_name_both_choices_unless_texts_are_private():
    examples = [Example("x:1", "why", "so", 0, choices=("right one", "wrong one"))]
    examples.append(Example("x:2", "q", None, 0, choices=("a", "b")))
    shown = HeldOut("test", 1, examples, TASK.targets(examples), np.array([[0], [2], [2], [0]], np.float32))
    page = mistakes_markdown(TASK._mistakes(shown, True))
    assert "gold `0: right one`, predicted `1: wrong one` with probability 0.881" in page and "x:2" not in page
    private = mistakes_markdown(TASK._mistakes(shown, False), False)
    assert "gold `choice 0`, predicted `choice 1`" in private and "wrong one" not in private and "why" not in private


# --- runs

OPTIONS = ["--dropout=0", "--device=cpu", "--precision=fp32", "--threads=1", "--batch-size=8", "--learning-rate=2e-3"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in (("train", made(160)), ("test", made(40, first=1000))):
        extra = [{**row, "site": "ab"[n % 2], "patient": n % 13} for n, row in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in extra))
    return str(folder / "train.jsonl"), str(folder / "test.jsonl")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("choices") / "run"
    given_ = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={out}", "--budget=5epochs"]
    assert main([*given_, *OPTIONS, "--seeds=2", "--evaluations=1", "--report-by=site"]) == 0
    return out


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in open(path)]


def test_it_learns_beside_simple_tools_and_chance(finished, files):
    results = json.loads((finished / "results.json").read_text())
    assert results["test"]["accuracy"]["mean"] > 0.8 and results["chosen_by"] == "accuracy"
    expected = np.mean([1 / len(row["choices"]) for row in rows_of(files[1])])
    assert results["chance"]["test"] == pytest.approx(expected) and results["choices"] == {"least": 2, "most": 4}
    assert set(results["baselines"]) == {"TF-IDF similarity", "longest choice"}
    assert set(results["by"]["test"]) == {"a", "b"} and results["ensemble"]["test"]["accuracy"] > 0.8
    assert results["intervals"]["test"]["loss"][0] < results["test"]["loss"]["seeds"][results["best_seed"] - 1]


def test_transformers_gives_the_same_scores(finished, files):
    from transformers import AutoModelForMultipleChoice, AutoTokenizer
    from transformers import BertForMultipleChoice as Theirs

    folder = finished / "final"
    model, tokenizer = AutoModelForMultipleChoice.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, Theirs)
    predictor = Predictor(folder, micro_batch_tokens=100)
    examples = [TASK.example("", row, COLUMNS) for row in rows_of(files[1])]
    each = predictor.task.of_texts(predictor.outputs(examples), examples)
    for row, output in zip(examples, each, strict=True):
        given_ = tokenizer([row.text] * len(row.choices), list(row.choices), padding=True, return_tensors="pt")
        with torch.no_grad():
            scores = model(**{name: values[None] for name, values in given_.items()}).logits[0]
        torch.testing.assert_close(torch.from_numpy(output[:, 0]), scores.log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_the_lines_of_the_card_use_the_model(finished, capsys):
    card = (finished / "final" / "README.md").read_text()
    assert "pipeline_tag: multiple-choice" in card and "TF-IDF similarity" in card and "at random: accuracy" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace("path/to/this/folder", str(finished / "final"))
    exec(code.replace('"One choice."', '"heart 7"').replace('"Another choice."', '"mask 7"'), {})
    assert capsys.readouterr().out.startswith("heart 7 tensor(")


def test_predictions_hold_the_choice_its_text_and_probabilities(finished, files, tmp_path):
    rows = [{key: value for key, value in row.items() if key != "label"} for row in rows_of(files[1])]
    rows[3]["choices"] = ["only one"]
    source = tmp_path / "new.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [str(source), f"--model={finished / 'final'}", "--device=cpu"]
    assert predict([*asked, f"--out={tmp_path / 'no.jsonl'}"]) == 2
    assert predict([*asked, f"--out={tmp_path / 'out.jsonl'}", "--skip-bad-rows"]) == 0
    found = rows_of(tmp_path / "out.jsonl")
    assert {k: found[3][k] for k in found[3] if k.startswith("p") and k != "patient"} == dict.fromkeys(
        ["predicted_choice", "predicted_text", "probabilities"]
    )
    right = 0
    for row, gold in zip(found, rows_of(files[1]), strict=True):
        if row["predicted_choice"] is not None:
            assert row["predicted_text"] == row["choices"][row["predicted_choice"]]
            assert len(row["probabilities"]) == len(row["choices"])
            assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
            assert np.argmax(row["probabilities"]) == row["predicted_choice"]
            right += row["predicted_choice"] == gold["label"]
    assert right > 27
    assert predict([*asked, f"--out={tmp_path / 'out.csv'}", "--skip-bad-rows"]) == 0
    with open(tmp_path / "out.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert json.loads(table[0]["probabilities"]) == pytest.approx(found[0]["probabilities"], abs=1e-5)
    assert table[0]["predicted_choice"] == str(found[0]["predicted_choice"]) and table[3]["predicted_text"] == ""
    # The columns of the table are read again, lists as JSON.
    again = [{k: v for k, v in row.items() if k in ("question", "choices")} for row in table[:3]]
    assert [row["predicted_choice"] for row in Predictor(finished / "final").predict(again)] == [
        row["predicted_choice"] for row in found[:3]
    ]


@pytest.mark.parametrize(("given_", "sentence"), [
    (["heart"], 'text 1 is a text: give a row, {"question": "...", "choices": ["...", "..."]}'),
    ([("a", "b")], "text 1 is a tuple: give a row"),
    ([{"question": "q", "choices": ["a", "b"]}, {"question": "q", "choices": ["a"]}],
     'text 2 has one choice in "choices", and two are the least: mend it, or leave it out'),
    ([{"question": "q"}], 'text 1 has no column of choices that can be told by its name among question'),
    ({"question": "q", "choices": ["a", "b"]}, "a single row was given where rows should be: put it into a list"),
])  # fmt: skip
def test_what_a_program_asks_wrongly_is_one_sentence(finished, given_, sentence):
    with pytest.raises(FinetuneError, match=re.escape(sentence)):
        Predictor(finished / "final").predict(given_)


def test_all_seeds_are_asked_and_rows_are_chosen(finished, files, tmp_path, capsys):
    row = {"question": "the patient", "choices": ["mask 1", "heart 1", "7 1"]}
    together = Ensemble(finished)
    (found,) = together.predict([row])
    mean = np.mean([seed.predict([row])[0]["probabilities"] for seed in together.seeds], axis=0)
    assert found["probabilities"] == pytest.approx(mean, abs=2e-6)
    first, second = Predictor(finished / "final").predict([row, row])
    assert found["predicted_text"] == "heart 1" and first == second
    out = tmp_path / "chosen.jsonl"
    assert choose([files[1], f"--model={finished}", "--rows=7", f"--out={out}", "--device=cpu"]) == 0
    chosen = rows_of(out)
    assert len(chosen) == 7 and all(0 <= each["uncertainty"] <= math.log(4) for each in chosen)
    plain = tmp_path / "new.txt"
    plain.write_text("heart\n")
    assert predict([str(plain), f"--model={finished / 'final'}", "--device=cpu"]) == 2
    assert "new.txt:1 is a line of text and has no choices" in capsys.readouterr().err


def test_a_column_of_another_name_is_looked_for_again(encoder, tmp_path, write_rows, one_thread):
    rows = [
        {"question": r["question"], "choices": ["x", "y"], "mine": r["choices"], "label": r["label"]} for r in made(30)
    ]
    out = tmp_path / "run"
    given_ = [f"--model={encoder}", f"--train={write_rows(rows)}", f"--out={out}", "--budget=1steps", *OPTIONS]
    assert main([*given_, "--seeds=1", "--task=multiple-choice", "--text-column", "question", "mine"]) == 0
    facts = json.loads((out / "final" / "finetune.json").read_text())
    assert facts["text_columns"] == ["question"] and facts["decision"] == {"choices": "mine"}
    (found,) = Predictor(out / "final").predict([rows[0]])
    assert found["predicted_text"] in rows[0]["mine"]


def test_the_plan_shows_every_choice_and_windows_are_refused(encoder, files, tmp_path, capsys):
    given_ = [f"--model={encoder}", f"--train={files[0]}", f"--out={tmp_path / 'run'}", *OPTIONS, "--dry-run"]
    assert main([*given_, "--sequence-length=10"]) == 0
    said = capsys.readouterr().out
    assert said.count("Example 1 (right)") == 1 <= said.count("Example 1 (wrong)") <= 3
    assert "of all tokens will be cut.\n" in said, "no remedy is named that is refused"
    assert main([*given_, "--long-text=windows"]) == 2
    assert "--long-text windows is not for multiple-choice: give head or head-tail" in capsys.readouterr().err


def test_a_model_of_transformers_is_asked(encoder, finished, tmp_path):
    from transformers import AutoTokenizer, BertConfig
    from transformers import BertForMultipleChoice as Theirs

    Theirs(BertConfig.from_pretrained(encoder)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path)
    predictor = Predictor(tmp_path)
    (found,) = predictor.predict([{"question": "heart", "choices": ["a", "b", "c"]}])
    assert predictor.task.name == "multiple-choice" and len(found["probabilities"]) == 3
    with pytest.raises(FinetuneError, match="is a model for multiple-choice: open it with finetune.Predictor"):
        Classifier.load(finished / "final")


def test_folds_hold_a_group_together_and_name_doubtful_rows(encoder, files, tmp_path, one_thread, capsys):
    given_ = [f"--model={encoder}", f"--train={files[0]}", f"--out={tmp_path / 'run'}", "--budget=2steps", *OPTIONS]
    assert main([*given_, "--folds=2", "--seeds=1", "--group-column=patient", "--report-by=site"]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert len(results["test"]["mrr"]["seeds"]) == 2 and set(results["by"]) == {"a", "b"}
    # Each fold has other rows, and together they have all of them.
    tested, of_chance = [rows["test"] for rows in results["rows"]], results["chance"]["test"]
    expected = np.mean([1 / len(row["choices"]) for row in rows_of(files[0])])
    assert np.average(of_chance["seeds"], weights=tested) == pytest.approx(expected)
    assert len(set(of_chance["seeds"])) == 2 and results["choices"] == {"least": 2, "most": 4}
    assert f"one choice at random: test accuracy {of_chance['mean']:.3f}" in capsys.readouterr().out
    doubtful = rows_of(tmp_path / "run" / "doubtful.jsonl")
    assert len(doubtful) == 16 and doubtful[0]["doubt"] >= doubtful[-1]["doubt"] > 0
    row = doubtful[0]
    assert row["doubt"] == pytest.approx(1 - row["probabilities"][row["label"]], abs=1e-5)
    assert row["choices"][row["predicted_choice"]] == row["predicted_text"]
    assert len(rows_of(tmp_path / "run" / "out_of_fold.jsonl")) == 160 and row["group"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--compare=scratch", "--learning-curve", "--mlm-weight=0.5"])
def test_it_is_compared_and_drawn_over_the_rows(encoder, files, tmp_path, one_thread, option):
    out = tmp_path / "run"
    given_ = [
        f"--model={encoder}",
        f"--train={files[0]}",
        f"--test={files[1]}",
        f"--out={out}",
        "--seeds=1",
        *OPTIONS[:4],
    ]
    assert main([*given_, "--budget=2steps", option]) == 0
    assert (out / "results.json").exists()
    if "compare" in option:
        page = (out / "comparison.md").read_text()
        assert "longest choice" in page and "mean reciprocal rank" in page


def test_questions_of_a_public_set_are_read(example_data):
    folder = example_data / "openbookqa"
    if not folder.is_dir():
        pytest.skip("no openbookqa among the example data sets")
    given_ = FinetuneSettings(train=str(folder / "train.jsonl"), test=str(folder / "test.jsonl"), skip_bad_rows=True)
    dataset = read_dataset(given_)
    assert dataset.task.name == "multiple-choice" and len(dataset.test) == 500
    # Three rows have a choice twice.
    assert len(dataset.train) + len(dataset.validation) == 4957 - 3 and chance(dataset.test) == 0.25


def test_a_model_is_measured_by_the_chance_of_the_texts_that_its_accuracy_is_of(tmp_path):
    """A model is measured by the chance of the texts that its accuracy is of."""
    held = HeldOut("test", 1, [], np.zeros((0, 2)), np.zeros((0, 1)))
    results, best = {"chance": {"validation": 0.5, "test": 0.25}}, {"validation": {"accuracy": 0.4}}
    said = "\n".join(MultipleChoice().tell(tmp_path, results, best, held, 1))
    assert "no more accurate on the validation texts than that: 0.400 against 0.500" in said


def test_numbers_may_be_counted_from_1_where_the_first_choice_is_never_right():
    """Only where the first choice is never the right one numbers may be counted from 1."""
    rows = [Example("", "text", label=number % 2, choices=("a", "b")) for number in range(40)]
    assert len(MultipleChoice().describe(rows)) == 1
    assert "never the first" in MultipleChoice().describe(rows[1::2])[-1]


def test_of_choices_with_names_a_letter_is_a_name_or_none():
    """Of choices with names a letter is one of the names, or none."""
    with pytest.raises(ValueError, match="none of its 2 choices"):
        right_choice("A", "answer", ["cold", "hot"], ["1", "2"])
    assert right_choice("A", "answer", ["cold", "hot"], []) == 0


def test_the_baseline_learns_the_words_of_questions_too():
    """Words of texts are words too, also those that no choice has."""
    train, rows = [Example("", "number", choices=("mask", "rate"))], [Example("", "number", choices=("number", "rate"))]
    assert similarity(train, [rows])[0][0, 0] > 0
