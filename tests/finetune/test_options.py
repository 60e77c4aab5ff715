"""What the options of a fine-tuning do, and the forms of input it takes."""

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file

from data_prep.text import builtin
from finetune.dataset import read_dataset
from finetune.predict import main as predict
from finetune.resolve import learning_rate, with_budget
from finetune.run import main
from finetune.settings import FinetuneSettings
from model import BertConfig

LENGTH = 48


def arguments(model, train, out, **options):
    given = {"model": model, "train": train, "out": out, "budget": "6epochs", "batch_size": 8, "learning_rate": 0.003}
    given |= {"precision": "fp32", "device": "cpu", "log_every": 2} | options
    if given["budget"].endswith("steps"):
        # The first of a few steps hardly changes anything: what it leaves must not be the best.
        given |= {"evaluations": 1}
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in given.items()
        if value is not None
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def results_of(out):
    return json.loads((out / "results.json").read_text())


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def probabilities(seed_folder):
    with np.load(seed_folder / "probabilities.npz") as stored:
        return {name: stored[name] for name in stored}


def predicted(model, file, out):
    assert predict([f"--model={model}", str(file), f"--out={out}", "--device=cpu"]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def agreement(rows):
    return sum(row["predicted_label"] == str(row["label"]) for row in rows) / len(rows)


@pytest.fixture
def given(encoder, make_rows, tmp_path):
    """(options) -> the arguments of a run in tmp_path/run on 48 texts, with a file to validate on."""
    train = write(tmp_path / "train.jsonl", make_rows(48))
    validation = write(tmp_path / "validation.jsonl", make_rows(15, first=100))
    return lambda **options: arguments(encoder, train, tmp_path / "run", validation=validation, **options)


def long_rows(make_rows, count, first=0):
    """A third of the texts, those of one class, is longer than the model can read."""
    rows = make_rows(count, first)
    for row in rows:
        if row["label"] == "heart":
            row["text"] = f"{row['text']} and so on " * 6
    return rows


MANNERS = {
    "head": {"long_text": "head"},
    "head-tail": {"long_text": "head-tail"},
    "windows": {"long_text": "windows"},
    "hidden layers": {"hidden_layers": 2},
    "a shorter length": {"sequence_length": 16},
}


@pytest.mark.parametrize("manner", MANNERS)
def test_predictions_reach_the_accuracy_that_was_measured(manner, encoder, make_rows, tmp_path, capsys):
    train = write(tmp_path / "train.jsonl", long_rows(make_rows, 48))
    test = write(tmp_path / "test.jsonl", long_rows(make_rows, 30, first=300))
    command = arguments(encoder, train, tmp_path / "run", budget="9steps", test=test, **MANNERS[manner])
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert 0 < printed.index("are longer than") < printed.index("Fine-tuning from")
    final = tmp_path / "run" / "final"
    facts, config = (json.loads((final / name).read_text()) for name in ("finetune.json", "config.json"))
    default = {"long_text": "head", "hidden_layers": 0, "sequence_length": LENGTH}
    found = facts | {"hidden_layers": config.get("classifier_hidden_layers", 0)}
    assert {name: found[name] for name in default} == default | MANNERS[manner]
    tokenizer, card = json.loads((final / "tokenizer_config.json").read_text()), (final / "README.md").read_text()
    assert tokenizer["model_max_length"] == found["sequence_length"]
    # Of hidden layers transformers knows nothing.
    assert ("import pipeline" in card) is (manner != "hidden layers")
    rows = predicted(final, test, tmp_path / "predicted.jsonl")
    assert agreement(rows) == results_of(tmp_path / "run")["test"]["accuracy"]["seeds"][0]
    stored = probabilities(tmp_path / "run" / "seed-1")["test"]
    given = np.array([list(row["probabilities"].values()) for row in rows])
    np.testing.assert_allclose(given, stored, atol=2e-6)


def test_the_share_that_is_cut_is_said(encoder, make_rows, tmp_path, capsys):
    from transformers import AutoTokenizer

    rows = long_rows(make_rows, 30)
    train = write(tmp_path / "train.jsonl", rows)
    validation = write(tmp_path / "validation.jsonl", make_rows(9, first=300))
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    lengths = [len(tokenizer(row["text"], add_special_tokens=False)["input_ids"]) for row in rows]
    cut = sum(max(0, length - (LENGTH - 2)) for length in lengths) / sum(lengths)
    command = arguments(encoder, train, tmp_path / "run", validation=validation, budget="1steps")
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"33.3% of the training texts are longer than {LENGTH} tokens: {cut:.1%} of all tokens will" in printed


def test_pairs_of_texts_are_told_apart_by_both(encoder, make_rows, tmp_path):
    singles = make_rows(90)
    rows = [
        {"question": a["text"], "answer": b["text"], "label": f"{a['label']}-{b['label']}"}
        for a, b in zip(singles[:45], singles[45:][::-1], strict=True)
    ]
    train, test = write(tmp_path / "train.jsonl", rows[:36]), write(tmp_path / "test.jsonl", rows[36:])
    command = arguments(encoder, train, tmp_path / "run", test=test, budget="15epochs")
    assert main(command) == 0
    found = results_of(tmp_path / "run")
    assert found["test"]["accuracy"]["mean"] > 0.8
    answers = predicted(tmp_path / "run" / "final", test, tmp_path / "predicted.jsonl")
    assert agreement(answers) == found["test"]["accuracy"]["mean"]


@pytest.mark.slow
def test_patience_ends_a_run_that_gets_no_better(given, tmp_path):
    # So large a rate ruins the model at once: from then on chance alone makes an evaluation better.
    assert main(given(patience=2, learning_rate=0.5, budget="60epochs")) == 0
    lines = (tmp_path / "run" / "seed-1" / "metrics.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if "validation" in row]
    order = [(-row["validation"]["macro_f1"], row["validation"]["loss"]) for row in found]
    assert len(order) == order.index(min(order)) + 1 + 2 < 60
    assert results_of(tmp_path / "run" / "seed-1")["best_step"] == found[-3]["step"]


def test_a_frozen_encoder_stays_as_it_was(given, encoder, tmp_path):
    assert main(given(budget="4steps", freeze_encoder=True)) == 0
    before = load_file(encoder / "model.safetensors")
    after = load_file(tmp_path / "run" / "final" / "model.safetensors")
    frozen = [name for name in after if name.startswith(("bert.embeddings.", "bert.encoder."))]
    assert len(frozen) == 5 + 2 * 16
    assert all(after[name].equal(before[name]) for name in frozen)
    assert not after["bert.pooler.dense.weight"].equal(before["bert.pooler.dense.weight"])


def test_balanced_class_weights_act_and_only_where_classes_are_not_balanced(encoder, make_rows, tmp_path):
    even = make_rows(24)
    uneven = [row for row in even if row["label"] != "mask"] + make_rows(3, first=300)
    validation = write(tmp_path / "validation.jsonl", make_rows(9, first=400))
    for name, rows, is_same in (("even", even, True), ("uneven", uneven, False)):
        train = write(tmp_path / f"{name}.jsonl", rows)
        options = {"validation": validation, "budget": "3steps"}
        for weighting in ("none", "balanced"):
            out = tmp_path / f"{name}-{weighting}"
            assert main(arguments(encoder, train, out, class_weights=weighting, **options)) == 0
        one, other = (weights(tmp_path / f"{name}-{weighting}" / "final") for weighting in ("none", "balanced"))
        assert (one == other) is is_same


def test_from_scratch_keeps_nothing_but_the_shape(given, encoder, tmp_path, capsys):
    assert main(given(from_scratch=True, budget="1steps", learning_rate=1e-9)) == 0
    assert "from scratch" in capsys.readouterr().out
    before = load_file(encoder / "model.safetensors")
    after = load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert all(after[name].shape == before[name].shape for name in after if name in before)
    matrices = [name for name in after if name.endswith(".weight") and "LayerNorm" not in name and name in before]
    assert len(matrices) == 3 + 2 * 6 + 1
    assert not any(after[name].isclose(before[name], atol=1e-4).all() for name in matrices)


def test_whole_numbers_are_classes_in_their_own_order(encoder, make_rows, tmp_path):
    names = {"heart": 10, "mask": 9, "number": -1}
    rows = [row | {"label": names[row["label"]]} for row in make_rows(30)]
    train = write(tmp_path / "train.jsonl", rows)
    assert main(arguments(encoder, train, tmp_path / "run")) == 0
    assert results_of(tmp_path / "run")["labels"] == ["-1", "9", "10"]
    config = json.loads((tmp_path / "run" / "final" / "config.json").read_text())
    assert config["id2label"] == {"0": "-1", "1": "9", "2": "10"}
    test = write(tmp_path / "test.jsonl", rows)
    assert agreement(predicted(tmp_path / "run" / "final", test, tmp_path / "predicted.jsonl")) > 0.9


def write_delimited(path, rows, delimiter):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path, rows):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS = {
    "csv": lambda path, rows: write_delimited(path, rows, ","),
    "tsv": lambda path, rows: write_delimited(path, rows, "\t"),
    "parquet": write_parquet,
    "jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(write(path, rows).read_bytes())),
}


def test_every_format_gives_the_same_model(encoder, make_rows, tmp_path):
    rows = make_rows(24)
    made = {"jsonl": write, **WRITERS}
    found = set()
    for ending, writer in made.items():
        writer(tmp_path / f"train.{ending}", rows)
        assert main(arguments(encoder, tmp_path / f"train.{ending}", tmp_path / ending, budget="2steps")) == 0
        found.add(weights(tmp_path / ending / "final"))
    assert len(found) == 1


def test_a_folder_of_files_is_one_set_of_texts(encoder, make_rows, tmp_path):
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "a.jsonl", make_rows(12))
    WRITERS["csv"](tmp_path / "parts" / "b.csv", make_rows(18, first=12))
    assert main(arguments(encoder, tmp_path / "parts", tmp_path / "run", budget="1steps")) == 0
    assert sum(results_of(tmp_path / "run")["rows"].values()) == 30


def test_a_time_budget_is_kept_to(given, tmp_path):
    assert main(given(budget="3s", log_every=1)) == 0
    assert 1 < json.loads((tmp_path / "run" / "seed-1" / "results.json").read_text())["seconds"] < 30
    lines = (tmp_path / "run" / "seed-1" / "metrics.jsonl").read_text().splitlines()
    rates = [row["learning_rate"] for row in map(json.loads, lines) if "validation" not in row]
    falling = rates[rates.index(max(rates)) :]
    assert falling == sorted(falling, reverse=True)
    # On a machine that is busy with other things a step or two may use the budget up.
    assert rates[-1] < max(rates) or len(rates) < 4


def test_bad_rows_are_skipped_and_counted_when_asked(encoder, make_rows, tmp_path, capsys):
    rows = make_rows(30)
    bad = [{"text": " ", "label": "mask"}, {"label": "mask"}, {"text": "no label"}, {"text": 3, "label": "mask"}]
    train = write(tmp_path / "train.jsonl", [*rows[:5], *bad, *rows[5:]])
    validation = write(tmp_path / "validation.jsonl", [*make_rows(9, first=100), {"text": "new", "label": "other"}])
    command = arguments(encoder, train, tmp_path / "run", validation=validation, budget="1steps")
    assert main([*command, "--skip-bad-rows"]) == 0
    printed = capsys.readouterr().out
    assert "Bad rows skipped: 5 (the first: train.jsonl:6" in printed
    assert results_of(tmp_path / "run")["rows"] == {"train": 30, "validation": 9, "test": 0}


def test_half_a_character_is_no_obstacle(encoder, make_rows, tmp_path):
    # JSON can spell half of a surrogate pair, which no file can hold.
    rows = [row | {"text": "\ud83d " + row["text"]} for row in make_rows(24)]
    train = write(tmp_path / "train.jsonl", rows)
    assert main(arguments(encoder, train, tmp_path / "run", budget="1steps", test=train)) == 0


def test_built_in_texts_are_split_three_ways(small_builtin):
    found = read_dataset(FinetuneSettings())
    parts = {name: [example.text for example in getattr(found, name)] for name in ("train", "validation", "test")}
    assert found.task.labels == ["model", "prep"]
    total = sum(1 for _ in builtin.labelled())
    assert sum(map(len, parts.values())) == total == len(set().union(*parts.values()))
    assert all(0.05 * total < len(parts[name]) < 0.15 * total for name in ("validation", "test"))


def of_width(folder, width):
    """Settings for a model that is a config alone."""
    config = BertConfig.from_preset("micro", 128, hidden_size=width, num_attention_heads=2)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return FinetuneSettings(model=str(folder))


@pytest.mark.parametrize(
    ("width", "texts", "epochs", "evaluations", "seeds"),
    [
        (128, 14_778, 3, 3, 1), (128, 13_000, 4, 4, 1), (128, 4_910, 10, 10, 1), (128, 2_000, 24, 10, 1),
        (128, 900, 30, 10, 1), (256, 4_910, 7, 7, 1), (768, 6_400, 3, 3, 1), (768, 4_910, 4, 4, 1),
        (768, 2_000, 10, 10, 1), (768, 900, 21, 10, 1), (768, 609, 30, 10, 1), (768, 608, 30, 10, 5),
        (128, 608, 30, 10, 5), (128, 450, 30, 10, 5), (128, 3, 30, 10, 5),
    ],
)  # fmt: skip
def test_a_small_set_is_learned_for_more_epochs(width, texts, epochs, evaluations, seeds, tmp_path):
    """About 600 steps of 32 texts at BERT base's width and 1,500 at 128 units, from 3 to 30 epochs, with an evaluation
    each, but at most 10; 5 seeds where 30 epochs are under 600 steps."""
    found = with_budget(of_width(tmp_path, width), texts)
    assert (found.budget, found.evaluations, found.seeds) == (f"{epochs}epochs", evaluations, seeds)


@pytest.mark.parametrize(("width", "rate"), [(128, 6e-4), (256, 2.3e-4), (512, 8.8e-5), (768, 5e-5), (1024, 3.4e-5)])
def test_the_learning_rate_falls_with_the_width(width, rate):
    assert learning_rate("adamw", width) == rate
    assert learning_rate("muon", width) == pytest.approx(1.5 * rate, rel=0.03)


def test_what_was_asked_is_not_changed_by_the_number_of_texts(tmp_path):
    asked = replace(of_width(tmp_path, 128), budget="500steps", evaluations=7, seeds=2)
    assert with_budget(asked, 10) == asked
    assert with_budget(replace(asked, seeds="auto"), 10).seeds == 1
    assert with_budget(replace(of_width(tmp_path, 128), seeds=1), 10).seeds == 1
