"""Tagging: rows of all kinds, learning, prediction, and what is refused."""

import csv
import io
import json
import random
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from data_prep.errors import PrepError
from finetune.dataset import read_dataset
from finetune.entities import annotations, taggers
from finetune.entities.tagged_rows import tagged_example
from finetune.entities.tags import entities, in_scheme
from finetune.predict import main as predict
from finetune.predictor import Predictor
from finetune.rows import Columns, Example, table_rows
from finetune.run import main
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks import HeldOut
from finetune.tasks.selection import kind_of_labels
from finetune.tasks.tagging import Tagging
from model import BertConfig

COLUMNS = Columns(("tokens",), "tags")
TEXT = Columns(("text",), "label")


def sentence(rng: random.Random) -> list[tuple[str, str]]:
    """Words with tags in IOB2: hearts and numbers are entities, a rate belongs to the heart before it."""
    found = []
    for _ in range(rng.randint(2, 5)):
        kind = rng.choice(["heart", "number", "plain"])
        if kind == "heart":
            found += [("heart", "B-organ"), *([("rate", "I-organ")] if rng.random() < 0.5 else [])]
        elif kind == "number":
            found += [("7", "B-number"), *([("8", "I-number")] if rng.random() < 0.5 else [])]
        else:
            found += [("the", "O"), ("patient", "O")]
    return found


def conll(sentences) -> str:
    return "\n".join("".join(f"{word}\t{tag}\n" for word, tag in words) for words in sentences)


@pytest.fixture(scope="module")
def sentences() -> dict[str, list]:
    rng = random.Random(1)
    return {name: [sentence(rng) for _ in range(count)] for name, count in (("train", 200), ("test", 50))}


@pytest.fixture(scope="module")
def files(sentences, tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in sentences.items():
        (folder / f"{name}.conll").write_text(conll(rows))
    return str(folder / "train.conll"), str(folder / "test.conll")


OPTIONS = ["--learning-rate=3e-3", "--dropout=0", "--device=cpu", "--precision=fp32", "--threads=1", "--batch-size=8"]


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("tagging") / "run"
    given = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={out}", "--budget=8epochs"]
    assert main([*given, *OPTIONS, "--seeds=2", "--evaluations=2"]) == 0
    return out


def test_it_learns_and_the_folder_knows_its_task(finished, sentences):
    results = json.loads((finished / "results.json").read_text())
    assert results["test"]["f1"]["mean"] > 0.95 and results["chosen_by"] == "strict_f1" and results["scheme"] == "IOB2"
    assert results["labels"] == ["O", "B-number", "I-number", "B-organ", "I-organ"]
    support = {row["label"]: row["support"] for row in results["per_type"]["test"]}
    gold = [entity.type for words in sentences["test"] for entity in entities([tag for _, tag in words])]
    assert support == {name: gold.count(name) for name in ("number", "organ")}
    predictor = Predictor(finished / "final")
    found = predictor.predict([" ".join(word for word, _ in words) for words in sentences["test"]])
    right = [row["predicted_tags"] == [tag for _, tag in words] for row, words in zip(found, sentences["test"])]  # noqa: B905
    assert np.mean(right) > 0.9
    lines = (finished / "test.conll").read_text().split("\n\n")
    assert len(lines) == 50 and all(len(line.split("\t")) == 3 for line in lines[0].splitlines())


def test_transformers_gives_the_same_tags_and_entities(finished, sentences):
    from transformers import AutoModelForTokenClassification, BertTokenizerFast, pipeline

    folder = finished / "final"
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    predictor = Predictor(folder)
    examples = [Tagging().example("", {"tokens": [w for w, _ in words]}, Columns(("tokens",), None))
                for words in sentences["test"]]  # fmt: skip
    each = predictor.task.of_texts(predictor.outputs(examples), examples)
    tag = pipeline(
        "token-classification", model=model, tokenizer=BertTokenizerFast.from_pretrained(folder),
        aggregation_strategy="first", device="cpu",
    )  # fmt: skip
    for example, output in zip(examples, each, strict=True):
        ids = [predictor.tokenizer.cls_id, *predictor.tokenizer.encode([example.text])[0], predictor.tokenizer.sep_id]
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0, 1:-1].softmax(-1)
        torch.testing.assert_close(torch.from_numpy(output), theirs, rtol=1e-4, atol=1e-5)
        found = predictor.task.prediction(output, example)["predicted_entities"]
        expected = [(e["entity_group"], e["start"], e["end"]) for e in tag(example.text)]
        assert [(e["label"], e["start"], e["end"]) for e in found] == expected


def test_long_texts_have_as_many_tags_as_words(finished):
    predictor = Predictor(finished / "final")
    words = ["heart", "the", "xyzzyx", "😀", "e\u0301"] * 2000
    (found,) = predictor.predict([" ".join(words)])
    assert len(found["predicted_tags"]) == len(found["predicted_words"]) == 10_000 and predictor.num_long == 1
    tags = np.array(found["predicted_tags"])
    assert (tags[::5] == "B-organ").mean() > 0.9 and (tags[1::5] == "O").mean() > 0.9


def test_predictions_are_columns_spans_and_rows_of_annotation_tools(finished, tmp_path):
    rows = tmp_path / "in.txt"
    rows.write_text("The heart-rate 😀 was 7 8.\nthe patient\n")

    def written(name, *options):
        out = tmp_path / name
        assert predict([str(rows), f"--model={finished / 'final'}", f"--out={out}", "--device=cpu", *options]) == 0
        return out.read_text()

    found = [json.loads(line) for line in written("out.jsonl").splitlines()]
    for row in found:
        assert all(row["text"][e["start"] : e["end"]] == e["text"] for e in row["predicted_entities"])
    columns = written("out.conll").rstrip("\n").split("\n\n")
    assert [[line.split("\t") for line in block.splitlines()] for block in columns] == [
        [list(pair) for pair in zip(row["predicted_words"], row["predicted_tags"], strict=True)] for row in found
    ]
    spans = [[(e["start"], e["end"], e["label"]) for e in row["predicted_entities"]] for row in found]
    for form, column in (("doccano", "label"), ("prodigy", "spans")):
        made = [json.loads(line) for line in written(f"{form}.jsonl", f"--format={form}").splitlines()]
        assert [annotations.mentions(row[column], row["text"], column) for row in made] == spans
    made = json.loads(written("ls.json", "--format=label-studio"))
    # Label Studio counts characters.
    for row in made:
        for value in (result["value"] for result in row["predictions"][0]["result"]):
            assert row["data"]["text"][value["start"] : value["end"]] == value["text"]
    back = [annotations.plain_row({"data": r["data"], "annotations": r["predictions"]}) for r in made]
    assert [annotations.mentions(row["label"], row["text"], "label") for row in back] == spans
    header, first, *_ = written("out.csv").splitlines()
    assert header.startswith("text,predicted_words,predicted_tags,predicted_entities") and "heart" in first


def test_words_with_blanks_are_not_joined_by_blanks(finished, tmp_path, capsys):
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    # The second one has a blank that allows no break: it is that of the word.
    words = [["The", "heart"], ["10\u00a0000", "heart\u2028rate"]]
    rows.write_text("".join(json.dumps({"tokens": each}) + "\n" for each in words))
    ask = [str(rows), f"--model={finished / 'final'}", "--device=cpu"]
    assert predict([*ask, f"--out={out}"]) == 2
    said = "in.jsonl:2 has a word or a tag with white space in it"
    assert said in capsys.readouterr().err and not list(tmp_path.glob("out.csv*"))
    assert predict([*ask, f"--out={tmp_path / 'out.jsonl'}"]) == 0
    found = [json.loads(line)["predicted_words"] for line in (tmp_path / "out.jsonl").open()]
    assert found == [["The", "heart"], ["10\u00a0000", "heart rate"]]
    assert predict([*ask, f"--out={tmp_path / 'out.conll'}", "--format=conll"]) == 0
    assert "10\u00a0000\t" in (tmp_path / "out.conll").read_text()


def of(sentences) -> list[tuple]:
    return [(tuple(w for w, _ in words), tuple(tag for _, tag in words)) for words in sentences]


def test_all_forms_of_the_same_rows_are_the_same_examples(sentences, tmp_path):
    rows = sentences["test"]
    spans = []
    for words in rows:
        example = Tagging().example("", {"tokens": [w for w, _ in words], "tags": [t for _, t in words]}, COLUMNS)
        mentions = Tagging(["O"]).decoder.mentions(example.label, example)
        spans.append((example.text, mentions))
    docstart = "-DOCSTART- -X- O\n\n" + "\n".join("".join(f"{w} NN {t}\n" for w, t in words) for words in rows)
    contents = {
        "a.conll": conll(rows),
        "b.conll": docstart,
        "c.jsonl": "\n".join(json.dumps({"tokens": [w for w, _ in r], "ner_tags": [t for _, t in r]}) for r in rows),
        "d.jsonl": "\n".join(json.dumps({"text": t, "label": [list(m) for m in found]}) for t, found in spans),
        "e.jsonl": "\n".join(json.dumps(annotations.prodigy({}, t, found)) for t, found in spans),
        "f.json": json.dumps([
            {"id": 1, "data": {"text": t}, "annotations": [
                {"was_cancelled": True, "result": []},
                {"result": [{"value": {"start": m.start, "end": m.end, "labels": [m.type]}} for m in found]},
            ]} for t, found in spans
        ]),
        "g.json": json.dumps([
            {"text": t, "label": [{"start": m.start, "end": m.end, "labels": [m.type]} for m in found]}
            for t, found in spans
        ]),
    }  # fmt: skip
    tables = {
        "h.csv": (("tokens", "tags"), [([w for w, _ in row], [t for _, t in row]) for row in rows]),
        "i.csv": (("text", "label"), [(text, json.dumps([list(m) for m in found])) for text, found in spans]),
    }
    for name, (columns, cells) in tables.items():
        content = io.StringIO()
        csv.writer(content).writerows([columns, *cells])
        contents[name] = content.getvalue()
    for name, content in contents.items():
        (tmp_path / name).write_text(content, newline="")
        dataset = read_dataset(FinetuneSettings(train=str(tmp_path / name)))
        found = sorted((*dataset.train, *dataset.validation), key=lambda e: int(e.place.rsplit(":", 1)[1]))
        got = [(tuple(e.text[a:b] for a, b in e.words), e.label) for e in found]
        assert dataset.task.name == "tagging" and got == of(rows), name


def test_tags_come_back_in_the_scheme_they_were_given_in(encoder, sentences, tmp_path, capsys, one_thread):
    rows = [
        [(w, t) for (w, _), t in zip(words, in_scheme([tag for _, tag in words], "BIOES"), strict=True)]
        for words in sentences["train"]
    ]
    (tmp_path / "train.conll").write_text(conll(rows))
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--train={tmp_path / 'train.conll'}", f"--out={out}", "--budget=8epochs", *OPTIONS]
    assert main([*given, "--evaluations=1"]) == 0
    assert "Tags in BIOES" in capsys.readouterr().out
    (found,) = Predictor(out / "final").predict(["the heart rate 7 the patient"])
    assert found["predicted_tags"] == ["O", "B-organ", "E-organ", "S-number", "O", "O"]


def test_names_that_look_prefixed_are_names():
    columns = Columns(("tokens",), "tags")
    rows = [{"tokens": ["to", "a@b.c"], "tags": ["O", "E-mail"]}, {"tokens": ["call", "7"], "tags": ["O", "Phone"]}]
    examples = [Tagging().example(str(number), row, columns) for number, row in enumerate(rows)]
    task = Tagging().fitted(examples, columns, FinetuneSettings())
    assert task.labels == ["O", "B-E-mail", "I-E-mail", "B-Phone", "I-Phone"]
    found = task.prediction(np.eye(5, dtype=np.float32)[[0, 1]], examples[0])
    assert found["predicted_tags"] == ["O", "E-mail"] and found["predicted_entities"][0]["label"] == "E-mail"
    config = BertConfig(vocab_size=9, id2label={0: "O", 1: "E-mail", 2: "Phone"}, num_labels=3)
    found = Tagging().of_model(config).prediction(np.eye(3, dtype=np.float32)[[0, 1]], examples[0])
    assert found["predicted_tags"] == ["O", "E-mail"] and found["predicted_entities"][0]["label"] == "E-mail"


def test_a_tag_that_continues_nothing_is_no_entity_of_a_model_that_was_trained_here():
    tags = np.eye(3, dtype=np.float32)[[2, 0, 1, 2]]
    example = Tagging().example("1", {"tokens": ["a", "b", "c", "d"]}, Columns(("tokens",), None))
    ours = Tagging(["O", "B-x", "I-x"])
    config = BertConfig(vocab_size=9, id2label={0: "O", 1: "B-x", 2: "I-x"}, num_labels=3)
    theirs = Tagging().of_model(config)
    for task, expected in (
        (ours, ["O", "O", "B-x", "I-x"]),
        (theirs.with_decision(ours.decision()), ["O", "O", "B-x", "I-x"]),
        # Of a folder of transformers it is not known: in IOB1 an entity begins so.
        (theirs.with_decision({}), ["B-x", "O", "B-x", "I-x"]),
    ):
        found = task.prediction(tags, example)
        assert found["predicted_tags"] == expected
        assert len(found["predicted_entities"]) == sum(tag[0] == "B" for tag in expected)


@pytest.mark.parametrize("decision", [{"scheme": "IOB3"}, {"scheme": ["IOB2"]}, {"scheme": "IOB2", "has_types": "no"}])
def test_a_scheme_that_is_not_known_is_refused(decision):
    with pytest.raises(FinetuneError, match="in no known scheme .*: fine-tune again"):
        Tagging(["O", "B-x", "I-x"]).with_decision(decision)


def test_an_entity_is_as_probable_as_its_words_are_on_average():
    example = Tagging().example("1", {"tokens": ["a", "heart", "rate", "7"]}, Columns(("tokens",), None))
    outputs = np.array([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [0.2, 0.2, 0.6], [0.2, 0.7, 0.1]], np.float32)
    found = Tagging(["O", "B-x", "I-x"]).prediction(outputs, example)["predicted_entities"]
    assert [(each["text"], each["probability"]) for each in found] == [("heart rate", 0.75), ("7", 0.7)]


def test_tags_without_types_come_back_without(encoder, sentences, tmp_path, one_thread):
    rows = [[(w, t[:1]) for w, t in words] for words in sentences["train"]]
    (tmp_path / "train.conll").write_text(conll(rows))
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--train={tmp_path / 'train.conll'}", f"--out={out}", "--budget=8epochs", *OPTIONS]
    assert main([*given, "--evaluations=1", "--show-text=no"]) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["labels"] == ["O", "B-entity", "I-entity"] and results["validation"]["f1"]["mean"] > 0.9
    assert not (out / "validation.conll").exists()
    (found,) = Predictor(out / "final").predict([("the", "heart", "rate", "7", "the", "patient")])
    assert found["predicted_tags"] == ["O", "B", "I", "B", "O", "O"]
    assert [e["text"] for e in found["predicted_entities"]] == ["heart rate", "7"]


def test_words_can_have_plain_tags(encoder, tmp_path, one_thread):
    rng, parts = random.Random(2), {"heart": "noun", "the": "article", "7": "number", "patient": "noun"}
    rows = [[(w, parts[w]) for w in rng.choices(list(parts), k=6)] for _ in range(120)]
    (tmp_path / "train.conll").write_text(conll(rows))
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--train={tmp_path / 'train.conll'}", f"--out={out}", "--budget=6epochs", *OPTIONS]
    assert main([*given, "--evaluations=1"]) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["validation"]["accuracy"]["mean"] > 0.95 and "f1" not in results["validation"]
    (found,) = Predictor(out / "final").predict(["the heart 7"])
    assert found == {"predicted_words": ["the", "heart", "7"], "predicted_tags": ["article", "noun", "number"]}


HOSTILE = [
    ({"tokens": ["a", "b"], "tags": ["O"]}, COLUMNS, "2 words .* and 1 tags"),
    ({"tokens": ["a"], "tags": [None]}, COLUMNS, "a word without a tag"),
    ({"tokens": ["a"], "tags": [""]}, COLUMNS, "a word without a tag"),
    ({"tokens": ["a", " "], "tags": ["O", "O"]}, COLUMNS, "an empty word"),
    ({"tokens": [], "tags": []}, COLUMNS, 'no "tokens"'),
    ({"tokens": None, "tags": ["O"]}, COLUMNS, 'no "tokens"'),
    ({"tokens": ["a"], "tags": {"a": 1}}, COLUMNS, "an object in"),
    ({"tokens": [1], "tags": ["O"]}, COLUMNS, "a number in"),
    ({"text": "", "label": []}, TEXT, "empty"),
    ({"text": "heart", "label": None}, TEXT, 'has no "label"'),
    ({"text": "heart", "label": "x"}, TEXT, "no list of entities"),
    ({"text": "heart", "label": [{"start": 0, "end": 2, "label": "x", "text": "xx"}]}, TEXT, "another one there"),
    ({"text": "heart", "label": [[0, 9, "x"]]}, TEXT, "at 0 to 9 .* has 5 characters"),
    ({"text": "heart", "label": [[3, 3, "x"]]}, TEXT, "at 3 to 3"),
    ({"text": "heart", "label": [[0, 5, ""]]}, TEXT, "without a name"),
    ({"text": "heart", "label": [{"start": 0, "end": 5, "labels": ["x", "y"]}]}, TEXT, "an entity with 2 names"),
    ({"text": "heart", "label": [[0, "5", "x"]]}, TEXT, "without start and end"),
    ({"text": "heart", "label": [[0, 5, "x"], [1, 2, "y"]]}, TEXT, "overlap"),
    ({"text": "heart", "label": [[0, 2, "x"], [2, 5, "y"]]}, TEXT, "two entities in one word"),
    ({"text": "a  b", "label": [[1, 3, "x"]]}, TEXT, "where no word is"),
    ({"text": "heart", "label": [{"begin": 1}]}, TEXT, "without a name"),
    ({"text": "heart", "label": [7.5]}, TEXT, "a number in"),
]


@pytest.mark.parametrize(("row", "columns", "sentence"), HOSTILE)
def test_rows_that_cannot_be_used_are_said(row, columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        Tagging().example("x:1", row, columns)


def test_borders_among_emoji_and_combining_marks_are_those_of_characters():
    text = "👩\u200d⚕️ cafe\u0301 中文 x"
    start = text.index("cafe")
    row = {"text": text, "label": [[start, start + 5, "place"], [text.index("文"), text.index("文") + 1, "sign"]]}
    example = Tagging().example("x:1", row, TEXT)
    words = [example.text[a:b] for a, b in example.words]
    marked = [(word, tag) for word, tag in zip(words, example.label, strict=True) if tag != "O"]
    assert marked == [("cafe\u0301", "B-place"), ("文", "B-sign")]


def as_units(text: str, place: int) -> int:
    return len(text[:place].encode("utf-16-le")) // 2


@given(st.data())
def test_places_in_characters_and_in_utf_16_units_are_told_apart(data):
    """doccano counts units, as early versions of Label Studio did; others count characters."""
    words = data.draw(
        st.lists(st.sampled_from(["Bo", "😀😀", "👨🏻\u200d🚒", "caf\u00e9", "x"]), min_size=1, max_size=8)
    )
    text, spans = " ".join(words), []
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    for word, end in zip(words, ends.tolist(), strict=True):
        if data.draw(st.booleans()):
            spans.append((end - len(word), end, "PER"))
    units = [(as_units(text, start), as_units(text, end), kind) for start, end, kind in spans]
    assert annotations.mentions([list(span) for span in spans], text, "label") == spans
    of_doccano = [{"start_offset": start, "end_offset": end, "label": kind} for start, end, kind in units]
    assert annotations.mentions(of_doccano, text, "entities") == spans
    for places in (spans, units):
        said = [
            {"start": start, "end": end, "labels": [kind], "text": text[a:b]}
            for (start, end, kind), (a, b, _) in zip(places, spans, strict=True)
        ]
        if len(set(words)) == len(words) or places is spans:
            assert annotations.mentions(said, text, "label") == spans


@pytest.mark.parametrize("text", ["Pain in Paris today", "Pain 😀 in Paris today"])
@pytest.mark.parametrize("start, end", [(0, 500), (-3, 4), (400, 500), (-9, -3), (4, 4), (9, 4)])
def test_places_outside_a_text_are_no_entity_whatever_letters_it_has(text, start, end):
    of_doccano = {"start_offset": start, "end_offset": end, "label": "X"}
    for span in ([start, end, "X"], of_doccano, {"start": start, "end": end, "label": "X"}):
        with pytest.raises(ValueError, match="has an entity at "):
            annotations.mentions([span], text, "label")


def test_a_list_of_doccano_after_an_emoji():
    """Of its tracker's issue 2290: "firetrucks" is at 22 to 32 there, and at 19 to 29 in Python."""
    text = "👨🏻\u200d🚒 firemen drive firetrucks"
    assert annotations.mentions([[22, 32, "THING"]], text, "label") == [(19, 29, "THING")]
    assert annotations.doccano({}, text, [annotations.Mention(19, 29, "THING")])["label"] == [[22, 32, "THING"]]


@pytest.mark.parametrize("text, word", [
    ("😀肺・癌性", "癌"), ("😀 Fieber 東京", "京"), ("痛み😀😀、東京都", "東京"),
])  # fmt: skip
def test_an_ideograph_is_a_word_where_units_and_characters_are_told_apart(text, word):
    """In each of the texts one of the two readings covers no whole words, or ends behind the text."""
    start = text.index(word)
    span = annotations.Mention(start, start + len(word), "X")
    as_characters = Tagging().example("1", {"text": text, "label": [list(span)]}, TEXT)
    read_back = Tagging().example("1", annotations.doccano({}, text, [span]), TEXT)
    if word == "癌":
        assert annotations.mentions([list(span)], text, "label") == [span]
    else:
        assert read_back.label == as_characters.label != ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("😀😀 राम दिल्ली में रहता है", "दिल्ली"),
        ("😀😀 คนไข้ มา จาก กรุงเทพ วันนี้", "กรุงเทพ"),
        ("😀 රජු ශ්\u200dරී නම්", "ශ්\u200dරී"),
    ],
)
def test_a_vowel_sign_or_joiner_is_no_border_of_a_word(text, word):
    start = text.index(word)
    units = [len(text[:place].encode("utf-16-le")) // 2 for place in (start, start + len(word))]
    expected = [(start, start + len(word), "THING")]
    assert annotations.mentions([[*units, "THING"]], text, "label") == expected
    assert annotations.mentions([[start, start + len(word), "THING"]], text, "label") == expected


@pytest.mark.parametrize(
    "text, said, start, end",
    [("In New\nYork now", "New\\nYork", 3, 11), ("In New  York now", "New York", 3, 12), ("In\r\nRome", "Rome", 4, 8)],
)
def test_label_studio_says_white_space_in_its_own_way(text, said, start, end):
    value = [{"start": start, "end": end, "text": said, "labels": ["LOC"]}]
    assert annotations.mentions(value, text, "label") == [(start, end, "LOC")]


def test_exports_of_annotation_tools_with_more_than_entities():
    task = {"id": 3, "data": {"text": "Bo", "site": "a"}, "annotations": [{"result": [
        {"type": "relation", "from_id": "x"}, {"value": {"choices": ["good"]}},
        {"value": {"start": 0, "end": 2, "labels": ["PER"]}},
    ]}]}  # fmt: skip
    row = annotations.plain_row(task)
    assert annotations.mentions(row["label"], "Bo", "label") == [(0, 2, "PER")] and row["site"] == "a"
    # Names as in its own template for named entities: a tag Labels, "label", of a tag Text, "text".
    result = {"from_name": "label", "to_name": "text", "type": "labels",
              "value": {"start": 0, "end": 2, "text": "Bo", "labels": ["PER"]}}  # fmt: skip
    assert annotations.label_studio(row, "Bo", [annotations.Mention(0, 2, "PER")]) == {
        "id": 3, "data": {"site": "a", "text": "Bo"}, "predictions": [{"result": [result]}],
    }  # fmt: skip
    choices = {
        "data": {"text": "Bo", "label": "own"},
        "annotations": [{"result": [{"value": {"choices": ["a", "b"]}}]}],
    }
    assert annotations.plain_row(choices)["label"] == "a;b"
    choices["annotations"][0]["result"] = [{"value": {"rating": 4}}]
    assert annotations.plain_row(choices)["label"] == "own"
    choices["annotations"][0]["result"] = None
    assert annotations.plain_row(choices)["label"] == []
    for odd in (True, 5, "calm"):
        choices["annotations"][0]["result"] = odd
        assert annotations.plain_row(choices)["label"] == odd
        with pytest.raises(ValueError, match='in "label"'):
            Tagging().example("x:1", annotations.plain_row(choices), TEXT)
    choices["annotations"][0]["result"] = [{"value": {"choices": "calm"}}]
    assert annotations.plain_row(choices)["label"] == "calm"
    rejected = [{"start": 0, "end": 2, "label": "PER", "answer": "reject"}]
    assert annotations.mentions(rejected, "Bo", "spans") == []
    # JSON-MIN has no column where nothing was found, and an object where several were chosen.
    several = {"text": "a", "sentiment": {"choices": ["a", "b"]}, "annotation_id": 3}
    assert annotations.plain_row(several)["sentiment"] == "a;b"
    assert annotations.plain_row({"text": "a", "own": {"choices": ["a"]}})["own"] == {"choices": ["a"]}
    assert set(Tagging().example("x:1", {"text": "Bo", "annotation_id": 7}, TEXT).label) == {"O"}
    # A row of one's own may have a column of this name.
    own = {"text": "a", "label": "x", "data": {"source": "b"}}
    assert annotations.plain_row(own) == own
    for nothing in ({"annotations": []}, {"annotations": [{"was_cancelled": True}]}, {}):
        row = annotations.plain_row({"data": {"text": "Bo"}, **nothing})
        with pytest.raises(ValueError, match='has no "label"'):
            Tagging().example("x:1", row, TEXT)


def test_rejected_rows_are_left_out_and_counted(tmp_path, capsys):
    rows = [{"text": f"the heart {n}", "spans": [{"start": 4, "end": 9, "label": "organ"}]} for n in range(40)]
    rows[0]["answer"], rows[3]["answer"] = "accept", "reject"
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    for name in ("train.jsonl", "train.parquet"):
        dataset = read_dataset(FinetuneSettings(train=str(tmp_path / name)))
        assert len(dataset.train) + len(dataset.validation) == 39
        assert "left out: 1." in capsys.readouterr().out
    # Of classes too, which have no spans; but a column of that name may hold the classes themselves.
    answers = ["accept", "reject", "ignore", "accept"]
    rows = [
        {"text": f"the heart {n}", "label": "ab"[n % 2], "answer": answers[n % 4], "_task_hash": n} for n in range(40)
    ]
    (tmp_path / "classes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "classes.jsonl")))
    assert len(dataset.train) + len(dataset.validation) == 20 and "left out: 20." in capsys.readouterr().out
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps({**row, "_task_hash": None}) for row in rows))
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "own.jsonl"), label_column="answer"))
    assert len(dataset.train) + len(dataset.validation) == 40


def test_tasks_of_label_studio_are_read_from_columns_too(tmp_path):
    tasks = [
        {"id": n, "data": {"text": f"the heart {n}"}, "annotations": [{"result": [
            {"value": {"start": 4, "end": 9, "text": "heart", "labels": ["organ"]}}
        ]}]} for n in range(30)
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(tasks), tmp_path / "train.parquet")
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "train.parquet")))
    assert {example.label for example in dataset.train} == {("O", "B-organ", "O")}


def test_a_text_in_brackets_is_no_list_of_words():
    def words(tokens, tags=None):
        columns = COLUMNS if tags is not None else Columns(("tokens",))
        example = Tagging().example("", {"tokens": tokens, "tags": tags}, columns)
        return [example.text[a:b] for a, b in example.words]

    assert words("['the', 'gene']") == words("['the', 'gene']", "['O', 'O']") == ["the", "gene"]
    # Under whatever name they were learned.
    notes = Tagging().example("", {"notes": "['the', 'gene']"}, Columns(("notes",)))
    assert [notes.text[a:b] for a, b in notes.words] == ["the", "gene"]
    assert len(Tagging().example("", {"notes": "[]"}, Columns(("notes",))).words) == 2
    assert words("[ 12 ]", ["O"] * 3) == ["[", "12", "]"] and words("[ 'a' ]", ["O"] * 3) == ["[", "'a'", "]"]
    with pytest.raises(ValueError, match='has no "tokens"'):
        words("[]", "[]")


def test_several_choices_of_label_studio_are_labels_in_csv_too(tmp_path):
    labels = ["a", '{"choices": ["a", "b"]}']
    content = io.StringIO()
    rows = [(n, f"the heart {n}", labels[n % 2], 7) for n in range(40)]
    csv.writer(content).writerows([("id", "text", "label", "annotation_id"), *rows])
    (tmp_path / "train.csv").write_text(content.getvalue(), newline="")
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "train.csv")))
    assert dataset.task.name == "multi-label" and dataset.task.labels == ["a", "b"]


def test_rows_that_were_accepted_in_prodigy_without_an_entity_have_none():
    row, columns = {"text": "the heart", "_task_hash": 7}, Columns(("text",), "spans")
    assert Tagging().example("x:1", {**row, "answer": "accept"}, columns).label == ("O", "O")
    with pytest.raises(ValueError, match='has no "spans"'):
        Tagging().example("x:1", row, columns)


@pytest.mark.parametrize("form", ["doccano", "prodigy", "label-studio"])
def test_rows_are_written_for_annotation_tools_with_what_else_they_have(form):
    example, task = Tagging().example("1", {"text": "Bo", "label": []}, TEXT), Tagging(["O", "B-PER", "I-PER"])
    row = {"id": 7, "site": "north", "n": float("nan"), "_hash": 3, "meta": {"pmid": 5}, "text": "Another text"}
    made = task.written(form, row, example, np.array([[0.0, 1.0, 0.0]], np.float32))
    found = json.loads(made, parse_constant=pytest.fail)
    kept = {"doccano": found, "prodigy": found.get("meta"), "label-studio": found.get("data")}[form]
    assert kept["site"] == "north" and kept["n"] is None and "_hash" not in kept
    assert (found if form == "label-studio" else kept)["source_id" if form == "doccano" else "id"] == 7
    assert (kept if form == "prodigy" else kept["meta"])["pmid"] == 5
    assert kept["source_text"] == "Another text" and (found if form != "label-studio" else kept)["text"] == "Bo"


def test_dates_in_a_row_are_written_for_annotation_tools():
    row, example = {"made": date(2026, 1, 2)}, Tagging().example("1", {"text": "Bo", "label": []}, TEXT)
    task = Tagging(["O", "B-PER", "I-PER"])
    for form in ("doccano", "prodigy", "label-studio"):
        assert "2026-01-02" in task.written(form, row, example, np.array([[0.0, 1.0, 0.0]], np.float32))


def test_columns_of_words_are_read_with_notes_and_blanks_in_words(tmp_path):
    (tmp_path / "a.conll").write_text(
        "# newdoc id = w0\n# newpar\n# sent_id = 1\n10\u00a0000 B-NUM\nthe O\n\n# id 7 domain=en\nthe _ _ O\n\n#\tO\n\n"
        * 20
    )
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "a.conll"), validation=str(tmp_path / "a.conll")))
    found = [[e.text[a:b] for a, b in e.words] for e in dataset.validation[:3]]
    assert found == [["10\u00a0000", "the"], ["the"], ["#"]]


def test_a_word_that_lacks_a_column_has_no_tag(tmp_path):
    (tmp_path / "a.conll").write_text("EU NNP B-NP B-ORG\nrejects VBZ B-VP\n\nPeter\tNNP\tB-PER\nPan\tI-PER\n\n")
    rows = [row for _, row in table_rows(str(tmp_path / "a.conll"), "utf-8")]
    assert [row["tags"] for row in rows] == [["B-ORG", None], ["B-PER", None]]


def test_tags_of_another_file_are_to_be_like_those_of_training(tmp_path):
    (tmp_path / "train.conll").write_text("heart B-x\n7 O\n\n" * 20)
    for name, tag in (("plain", "x"), ("other", "B-y")):
        (tmp_path / f"{name}.conll").write_text(f"heart {tag}\n")
        given = FinetuneSettings(train=str(tmp_path / "train.conll"), validation=str(tmp_path / f"{name}.conll"))
        with pytest.raises(FinetuneError, match=f"{name}.conll:1 has the tag '{tag}', "):
            read_dataset(given)


def test_of_many_types_a_tenth_is_held_back(tmp_path):
    rng = random.Random(3)
    rows = ["".join(f"{t}{n} B-{t}\n" for t in "abcdefgh" if rng.random() < 0.5) + "end O\n" for n in range(500)]
    (tmp_path / "train.conll").write_text("\n".join(rows))
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "train.conll")))
    assert 35 < len(dataset.validation) < 65


def test_rows_are_held_back_by_the_type_that_the_fewest_texts_have():
    rows = ["B-many O", "B-many B-rare", "O B-many", "B-rare B-rare B-rare B-rare", "O O"]
    examples = [
        Tagging().example(str(n), {"tokens": ["a"] * len(tags.split()), "tags": tags.split()}, COLUMNS)
        for n, tags in enumerate(rows)
    ]
    task = Tagging().fitted(examples, COLUMNS, FinetuneSettings())
    assert list(map(task.stratum, examples)) == ["many", "rare", "many", "rare", ""]


def test_other_json_files_of_a_folder_are_passed_over(tmp_path):
    (tmp_path / "rows.conll").write_text("heart B-x\n7 O\n\n" * 3 + "".join(f"heart B-x\n{n} O\n\n" for n in range(30)))
    (tmp_path / "dataset_info.json").write_text("{}")
    assert len(read_dataset(FinetuneSettings(train=str(tmp_path))).train) > 20
    with pytest.raises(PrepError, match="is no array of rows"):
        read_dataset(FinetuneSettings(train=str(tmp_path / "dataset_info.json")))


def test_an_entity_that_ends_inside_a_word_takes_all_of_it():
    example = Tagging().example("x:1", {"text": "the heartrate", "label": [[4, 9, "organ"]]}, TEXT)
    assert example.label == ("O", "B-organ")


def test_a_file_with_a_word_without_a_tag_names_the_sentence(encoder, tmp_path, capsys):
    (tmp_path / "train.conll").write_text("the O\nheart B-x\n\nrate\nthe O\n")
    given = [f"--model={encoder}", f"--train={tmp_path / 'train.conll'}", f"--out={tmp_path / 'x'}", "--device=cpu"]
    assert main(given) == 2
    assert 'train.conll:4 has a word without a tag in "tags"' in capsys.readouterr().err


def test_what_teaches_nothing_is_refused():
    settings = FinetuneSettings()
    nothing = [Example("1", "a", label=("O",), words=((0, 1),))]
    with pytest.raises(FinetuneError, match="no entity"):
        Tagging().fitted(nothing, COLUMNS, settings)
    mixed = [Example("1", "a b", label=("B-x", "NN"), words=((0, 1), (2, 3)))]
    with pytest.raises(FinetuneError, match="1 has the tag 'NN', where others begin with B- or I-"):
        Tagging().fitted(mixed, COLUMNS, settings)
    with pytest.raises(FinetuneError, match="1 has a tag, where"):
        Tagging().fitted(mixed, COLUMNS, replace(settings, show_text="no"))
    texts = [Example("1", "a b", label=("a tag that is in truth a whole sentence of it", "x"), words=((0, 1), (2, 3)))]
    with pytest.raises(FinetuneError, match="holds texts where tags should be"):
        Tagging().fitted(texts, COLUMNS, replace(settings, show_text="no"))
    numbers = [Example("1", "a", label=(f"B-{n}",), words=((0, 1),)) for n in range(150)]
    with pytest.raises(FinetuneError, match="301 different tags in 150 rows"):
        Tagging().fitted(numbers, COLUMNS, settings)


def test_options_that_leave_words_out_are_refused(encoder, files, tmp_path, capsys):
    given = [f"--model={encoder}", f"--train={files[0]}", f"--out={tmp_path / 'x'}", "--device=cpu"]
    assert main([*given, "--long-text=head"]) == 2
    assert "--long-text head is not for tagging: give windows" in capsys.readouterr().err
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"tokens": ["a"], "more": ["b"], "tags": ["B-x"]}\n')
    given[1] = f"--train={rows}"
    assert main([*given, "--text-column", "tokens", "more", "--label-column=tags"]) == 2
    assert "--text-column names two columns" in capsys.readouterr().err


def test_forms_of_annotation_tools_are_for_tagging_alone(encoder, tmp_path, make_rows, write_rows, capsys, one_thread):
    out = tmp_path / "run"
    train = write_rows(make_rows(30))
    assert main([f"--model={encoder}", f"--train={train}", f"--out={out}", "--budget=2steps", *OPTIONS]) == 0
    assert predict([train, f"--model={out / 'final'}", "--format=doccano", "--device=cpu"]) == 2
    assert "--format doccano is not for classification" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "words", "task"),
    [
        ([["O", "B-x"]], [["a", "b"]], "tagging"),
        (['["O", "B-x"]'], ["['a' 'b']"], "tagging"),
        ([["x"], ["y", "z"]], [["a", "b"], ["c", "d", "e"]], "multi-label"),
        ([[[0, 1, "x"]], []], (), "tagging"),
        ([[{"start": 0, "end": 1, "label": "x"}]], (), "tagging"),
        ([["x"], []], (), "multi-label"),
    ],
)
def test_the_task_is_told_by_the_labels(values, words, task):
    assert kind_of_labels(values, words)[0] == task


def test_the_dictionary_finds_the_longest_entity_of_training():
    words = [["the", "heart", "rate"], ["heart", "the"], ["7", "the", "the"]]
    tags = [["O", "B-organ", "I-organ"], ["B-organ", "O"], ["B-number", "O", "O"]]
    found = taggers.dictionary(words, tags, [["The", "Heart", "RATE", "7"], ["rate", "heart"], []])
    assert list(found) == [["O", "B-organ", "I-organ", "B-number"], ["O", "B-organ"], []]
    # A word that is mostly none is left alone.
    rare = list(taggers.dictionary([["a"], ["a"], ["a"]], [["B-x"], ["O"], ["O"]], [["a"]]))
    assert rare == [["O"]]


def test_an_unknown_word_gets_the_tag_that_most_words_have():
    words, tags = [["The", "heart", "the"], ["beats", "of", "heart"]], [["DT", "NN", "DT"], ["VB", "DT", "VB"]]
    found = taggers.most_frequent(words, tags, [["the", "BEATS", "valve"], []])
    assert list(found) == [["DT", "VB", "DT"], []]


def test_the_crf_learns_from_shapes_and_neighbours(sentences):
    pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    rows = {name: ([[w for w, _ in s] for s in part], [[t for _, t in s] for s in part])
            for name, part in sentences.items()}  # fmt: skip
    labels = ["O", "B-number", "I-number", "B-organ", "I-organ"]
    found = list(taggers.crf(*rows["train"], rows["test"][0], labels))
    tags = [[labels[i] for i in each.argmax(1)] for each in found]
    assert tags == rows["test"][1]
    assert all(each.shape == (len(w), 5) for each, w in zip(found, rows["test"][0], strict=True))
    assert taggers.shape("BRCA1-like") == "X0-x"


def test_the_crf_answers_with_the_most_probable_sentence_of_tags():
    """Of ten sentences four are "a a", three "b c" and three "b d": most begin with b, but none is as frequent."""
    pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    tags = [["a", "a"]] * 40 + [["b", "c"]] * 30 + [["b", "d"]] * 30
    (found,) = taggers.crf([["x", "x"]] * 100, tags, [["x", "x"]], list("abcd"))
    assert found.argmax(1).tolist() == [0, 0] and found[0, 1] == pytest.approx(0.6, abs=0.05)


def test_models_are_unsure_of_a_text_and_doubt_its_tags_by_its_worst_word():
    sure, other = [[0.98, 0.02]] * 3, [0.3, 0.7]
    outputs = np.array([[*sure, [0.5, 0.5]], [*sure, other]], np.float32)
    task, mean = Tagging(["O", "B-x"]), np.array([0.4, 0.6])
    of_each = -np.log([0.5, 0.5]).mean(), -(np.array(other) * np.log(other)).sum()
    unsure = -(mean * np.log(mean)).sum()
    assert task.uncertainty(outputs) == pytest.approx((unsure, unsure - np.mean(of_each)), abs=1e-6)
    assert task.uncertainty(outputs[:, :0]) == (0, 0)
    gold = np.array([(0, 0), (0, 0), (0, 1), (0, 1)])
    assert task.doubt(gold, outputs[1]) == pytest.approx(0.98) and task.doubt(gold[:0], outputs[1, :0]) == 0


def test_gold_and_predicted_tags_stand_in_columns_unless_texts_are_private(tmp_path):
    rows = [[("the", "O"), ("heart", "B-x"), ("rate", "I-x")], [("7", "O")]]
    examples = [
        Tagging().example(f"t:{n}", {"tokens": [w for w, _ in r], "tags": [t for _, t in r]}, COLUMNS)
        for n, r in enumerate(rows)
    ]
    task = Tagging(["O", "B-x", "I-x"])
    shown = HeldOut("test", 1, examples, task.targets(examples), np.eye(3, dtype=np.float32)[[0, 1, 0, 1]])
    task.write_files(tmp_path, shown, FinetuneSettings())
    assert (tmp_path / "test.conll").read_text() == "the\tO\tO\nheart\tB-x\tB-x\nrate\tI-x\tO\n\n7\tO\tB-x\n"
    assert "heart rate" in (tmp_path / "mistakes.md").read_text()
    task.write_files(tmp_path, shown, FinetuneSettings(show_text="no"))
    assert [path.name for path in tmp_path.iterdir()] == ["mistakes.md"]
    assert "heart" not in (tmp_path / "mistakes.md").read_text()


def test_a_tagger_of_transformers_predicts_and_the_plan_is_printed(finished, files, encoder, tmp_path, capsys):
    from transformers import BertConfig, BertForTokenClassification, BertTokenizerFast

    names = {0: "O", 1: "B-organ", 2: "I-organ"}
    config = BertConfig.from_pretrained(finished / "final", id2label=names, label2id={v: k for k, v in names.items()})
    BertForTokenClassification(config).save_pretrained(tmp_path / "theirs")
    BertTokenizerFast.from_pretrained(finished / "final").save_pretrained(tmp_path / "theirs")
    predictor = Predictor(tmp_path / "theirs")
    (found,) = predictor.predict([["the", "heart rate", "of"] * 40])
    assert len(found["predicted_tags"]) == 120 and predictor.task.name == "tagging"
    given = [f"--model={encoder}", f"--train={files[0]}", f"--out={tmp_path / 'run'}", *OPTIONS]
    assert main([*given, "--dry-run"]) == 0
    assert "O B-number" in (said := capsys.readouterr().out) or "B-organ" in said
    assert not (tmp_path / "run").exists()


def test_compared_models_stand_beside_dictionary_and_crf(encoder, files, tmp_path, one_thread):
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={out}", "--budget=2epochs"]
    assert main([*given, *OPTIONS, "--compare=scratch", "--evaluations=1"]) == 0
    models = json.loads((out / "results.json").read_text())["models"]
    assert models["dictionary of the training entities"]["test"]["f1"]["mean"] > 0.5
    if taggers.has_crf():
        assert models["CRF on word shapes"]["test"]["f1"]["mean"] > 0.9


@pytest.mark.parametrize(("tags", "pair"), [
    (["b-gene", "i-gene", "O"], ("b-gene", "i-gene")), (["b-gene", "i-gene", "o"], ("b-gene", "i-gene")),
    (["B_gene", "O", "I_gene", "B_drug"], ("B_gene", "I_gene")), (["gene-B", "gene-I", "O"], ("gene-B", "gene-I")),
    (["B-gene", "I-gene", "O"], None), (["b-gene", "i-drug", "O"], None), (["gene", "b-gene", "O"], None),
    (["B", "I", "O"], None), (["NN", "i-NN"], None),
])  # fmt: skip
def test_prefixes_in_another_spelling_are_warned_of(tags, pair):
    found = [Example("x", " ".join(tags), label=tuple(tags), words=tuple((n, n + 1) for n in range(len(tags))))] * 3
    said = Tagging().fitted(found, COLUMNS, FinetuneSettings()).describe(found)
    warnings = [line for line in said if line.startswith("Warning: ")]
    expected = [] if pair is None else [f'Warning: the tags "{pair[0]}" and "{pair[1]}" look like the beginning and']
    assert [line[: len(expected[0])] for line in warnings] == expected if expected else not warnings


def test_entities_that_take_a_whole_word_are_counted():
    columns = Columns(("text",), "label")
    text = "서울에서 온 환자, 부산."
    rows = [[[0, 2, "LOC"]], [[0, 4, "LOC"], [11, 13, "LOC"]], [[10, 13, "LOC"]], [[11, 12, "LOC"]]]
    found = [tagged_example("x", {"text": text, "label": label}, columns) for label in rows]
    assert [example.num_widened for example in found] == [1, 0, 0, 1]
    task = Tagging().fitted(found, columns, FinetuneSettings())
    assert any("2 of 5 entities begin or end inside a word" in line for line in task.describe(found))
    assert not any("inside a word" in line for line in task.describe(found[1:3]))


def test_words_are_counted_from_1_for_people():
    """Words are counted from 1 for people."""
    task = Tagging(["O", "B-X", "I-X"])
    row = Example("a:1", "one two", label=("O", "B-X"), words=((0, 3), (4, 7)))
    outputs = np.array([[0.9, 0.1, 0.0], [0.8, 0.1, 0.1]], np.float32)
    shown = HeldOut("test", 1, [row], task.targets([row]), outputs)
    (found,) = task._mistakes(shown, with_text=True)
    assert (found.gold, found.predicted) == ("X at word 2: two", "none such")
