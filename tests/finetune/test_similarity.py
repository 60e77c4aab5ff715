"""Vectors that are learned: from rows of each kind to a folder that search tools open, and what is refused."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from finetune.choose import main as choose
from finetune.dataset import read_dataset
from finetune.embed import main as embed
from finetune.predict import main as predict
from finetune.predictor import Predictor
from finetune.resolve import resolve
from finetune.rows import Example
from finetune.run import main
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks import HeldOut
from finetune.tasks.sequences import new_model
from finetune.tasks.similarity import PAIRS, SCORES, TEXTS, UNTUNED, Similarity
from finetune.training import outputs_of
from finetune.vectors.embedder import Embedder
from finetune.vectors.sentence_model import SentenceModel
from finetune.vectors.single_texts import encode_single_texts, halves
from finetune.vectors.vector_baselines import untuned_vectors
from model.families import read_config

pytestmark = pytest.mark.usefixtures("one_thread")
TOPICS = ("heart rate", "mask 7 8", "patient was stable", "of the 9 0", "x y z", "b c d", "m n o", "1 2 3")


def pairs_of(count, first=0):
    """A text and another one on its topic."""
    return [{"query": f"the {TOPICS[n % 8]} {n}", "document": f"{TOPICS[n % 8]} of {n} rates"}
            for n in range(first, first + count)]  # fmt: skip


def scored_of(count, first=0):
    """Pairs on one topic have 5, others 0 or 1."""
    rows = []
    for n in range(first, first + count):
        other = n if n % 3 == 0 else n + 1 + n % 5
        score = 5.0 if other == n else n % 3 - 1.0
        rows.append({"text_a": f"the {TOPICS[n % 8]} {n}", "text_b": f"{TOPICS[other % 8]} of {n} rates",
                     "score": score})  # fmt: skip
    return rows


def texts_of(count, first=0):
    return [{"text": f"the {TOPICS[n % 8]} {n} , {TOPICS[n % 8]} of {n} rates"} for n in range(first, first + count)]


ROWS = {TEXTS: texts_of, SCORES: scored_of, PAIRS: pairs_of}


# --- rows


def read(write_rows, rows, **given):
    return read_dataset(FinetuneSettings(train=write_rows(rows), task="similarity", **given))


@pytest.mark.parametrize("kind", ROWS)
def test_columns_say_what_rows_are(write_rows, kind, capsys):
    task = read(write_rows, ROWS[kind](80)).task
    assert task.learned == kind
    assert {SCORES: "spearman"}.get(kind, "mrr") == task.default_metric
    said = capsys.readouterr().out
    assert {TEXTS: "two passes over a text", SCORES: "Pairs with scores from 0 to 5", PAIRS: "Pairs without scores"}[
        kind
    ] in said


def test_labels_of_single_texts_are_not_read(write_rows, make_rows):
    dataset = read(write_rows, make_rows(40))
    assert dataset.task.learned == TEXTS and dataset.columns.label is None
    with pytest.raises(FinetuneError, match="--label-column names scores of pairs, and there is one column of texts"):
        read(write_rows, make_rows(40), label_column="label")


def test_lines_of_plain_text_are_texts_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("\n\n".join(row["text"] for row in texts_of(60)) + "\n")
    dataset = read_dataset(FinetuneSettings(train=str(tmp_path / "notes.txt"), task="similarity"))
    assert dataset.task.learned == TEXTS and len(dataset.train) + len(dataset.validation) == 60
    assert {row.place for row in dataset.train} <= {f"notes.txt:{n}" for n in range(1, 120, 2)}
    with pytest.raises(FinetuneError, match="is plain text without columns"):
        read_dataset(FinetuneSettings(train=str(tmp_path / "notes.txt"), task="regression"))


def test_classes_are_no_scores(write_rows):
    rows = [{"text_a": f"a {n}", "text_b": "b", "label": ["yes", "no"][n % 2]} for n in range(40)]
    with pytest.raises(
        FinetuneError, match='train.jsonl:1 has a text in "label", which is not a number .pairs that belong'
    ):
        read(write_rows, rows)


@pytest.mark.parametrize("kind", ROWS)
def test_held_out_rows_may_be_of_another_kind(write_rows, kind, capsys):
    """And of other columns; their scores are judged in their own range where the training rows have none."""
    validation, test = write_rows(scored_of(20), "v.jsonl"), write_rows(pairs_of(20), "t.jsonl")
    dataset = read(write_rows, ROWS[kind](40), validation=validation, test=test)
    assert dataset.task.judged_by == (SCORES, PAIRS) and dataset.task.scale == (0.0, 5.0)
    assert dataset.task.default_metric == "spearman" and set(dataset.task.metrics) > {"spearman", "mrr", "loss"}
    assert dataset.validation[0].label == 5.0 and dataset.test[0].label is None
    assert dataset.test[0].every_text() == ["the heart rate 0", "heart rate of 0 rates"]
    assert "t.jsonl: texts in" in capsys.readouterr().out or kind == PAIRS


def test_columns_of_held_out_pairs_can_be_named(write_rows):
    """Beside texts alone, which have none of them."""
    rows = [{"this": row["text_a"], "that": row["text_b"], "gold": row["score"]} for row in scored_of(20)]
    texts = [row | {"rank": 1.5} for row in texts_of(40)]
    train, pairs = write_rows(texts, "train.jsonl"), write_rows(rows, "pairs.jsonl")
    given = {"train": train, "validation": pairs, "task": "similarity", "text_column": ("this", "that")}
    dataset = read_dataset(FinetuneSettings(**given, label_column="gold"))
    assert dataset.task.learned == TEXTS and dataset.task.judged_by == (SCORES,)
    assert dataset.validation[0].label == rows[0]["gold"] and dataset.validation[0].text_pair == rows[0]["that"]
    for changes, refusal in (
        ({"label_column": "golden"}, 'no file has a column "golden": did you mean --label-column gold'),
        ({"text_column": ("this", "thet")}, 'no file has a column "thet": did you mean --text-column th'),
        ({"group_column": "patient"}, 'no file has a column "patient": name another, or leave it out'),
        ({"label_column": "rank"}, '"rank" is in no file of pairs, of which scores are read: name two'),
    ):
        with pytest.raises(FinetuneError, match=refusal):
            read_dataset(FinetuneSettings(**given | changes))


def test_of_pairs_the_scores_that_are_named_are_in_training_too(write_rows):
    """They would be taken for pairs that belong together."""
    pairs = scored_of(40)
    train = write_rows([{"text_a": row["text_a"], "text_b": row["text_b"], "golden": row["score"]} for row in pairs])
    test = write_rows(
        [{"text_a": row["text_a"], "text_b": row["text_b"], "gold": row["score"]} for row in pairs], "t.jsonl"
    )
    with pytest.raises(FinetuneError, match=r'train.jsonl has no column "gold" .*did you mean --label-column golden'):
        read_dataset(FinetuneSettings(train=train, test=test, task="similarity", label_column="gold"))


def test_a_text_is_cut_at_the_blank_nearest_to_its_middle():
    for text, expected in [
        ("a b", ("a", "b")), ("aaaa b c", ("aaaa", "b c")), ("a b cccc", ("a b", "cccc")),
        ("a  b\nc d", ("a b", "c d")), ("aaaaaaaa b", ("aaaaaaaa", "b")),
    ]:  # fmt: skip
        found = halves(Example("x:1", text, label="y", group="g"))
        assert (found.text, found.text_pair) == expected and found.label is None and found.group == "g"
    assert halves(Example("x:1", " word ")) is None


def test_of_texts_alone_the_halves_are_sought(write_rows, capsys):
    rows = [*texts_of(60), *({"text": f"word{n}"} for n in range(60))]
    dataset = read(write_rows, rows, test=write_rows(texts_of(9, 300), "t.jsonl"))
    said = capsys.readouterr().out
    assert re.search(r"No validation pairs were given: .* \(\d+ texts, \d+ of a single word left out\)", said)
    assert "No test pairs were given: the first half of a text is to find its second half (9 texts)." in said
    assert all(row.text_pair for row in (*dataset.validation, *dataset.test))
    assert not any(row.text_pair for row in dataset.train)
    with pytest.raises(FinetuneError, match="the test texts are of one word each"):
        read(write_rows, texts_of(60), test=write_rows([{"text": "word"}, {"text": "more"}], "t.jsonl"))


@pytest.mark.parametrize(("kind", "given", "sentence"), [
    (TEXTS, {"dropout": 0.0}, "--dropout 0 makes both passes over a text the same"),
    (PAIRS, {"hidden_layers": 1}, "--hidden-layers is of a head, which a model for similarity lacks"),
    (PAIRS, {"freeze_encoder": True}, "--freeze-encoder is of a head"),
    (SCORES, {"unfreeze": 0.5}, "--unfreeze is of a head"),
    (TEXTS, {"batch_size": 1}, "--batch-size 1 leaves no other text to compare a text with"),
    (PAIRS, {"batch_size": 1}, "--batch-size 1 leaves no other text to compare a text with"),
])  # fmt: skip
def test_options_that_do_not_act_are_refused(write_rows, kind, given, sentence):
    with pytest.raises(FinetuneError, match=re.escape(sentence)):
        read(write_rows, ROWS[kind](40), **given)


def test_scores_are_learned_one_by_one_too(write_rows):
    assert read(write_rows, scored_of(40), batch_size=1).task.default_metric == "spearman"


@pytest.mark.parametrize(("option", "sentence"), [
    ("--long-text=windows", "--long-text windows is not for similarity: give head"),
    ("--metric=accuracy", "--metric accuracy is no score of similarity: there are mrr, recall_1, recall_10"),
    ("--metric=spearman", "--metric spearman is no score of similarity"),
    ("--test=SCORES", "--metric spearman is no score of similarity: there are mrr, recall_1, recall_10"),
    ("--calibrate", "--calibrate is for classification and multi-label, not for similarity"),
])  # fmt: skip
def test_options_of_other_tasks_are_refused(encoder, write_rows, tmp_path, capsys, option, sentence):
    train, test = write_rows(pairs_of(40)), write_rows(scored_of(40), "scores.jsonl")
    given = [f"--model={encoder}", "--task=similarity", f"--train={train}", f"--out={tmp_path / 'run'}", "--device=cpu"]
    # That the test rows have it is not enough.
    more = [f"--test={test}", "--metric=spearman"] if option == "--test=SCORES" else [option]
    assert main([*given, *more]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_equal_scores_and_equal_texts_teach_nothing(write_rows):
    with pytest.raises(FinetuneError, match='"score" of .* has no two different scores'):
        read(write_rows, [{**row, "score": 1} for row in scored_of(40)])
    with pytest.raises(FinetuneError, match="has no two different texts"):
        read(write_rows, texts_of(1) * 40)


# --- scores


def test_scores_are_those_of_scipy_and_of_their_definitions():
    rng = np.random.default_rng(1)
    gold, outputs = rng.integers(1, 6, 30).astype(np.float64), rng.random((30, 4)).astype(np.float32)
    found = Similarity(SCORES, (1.0, 5.0), [SCORES]).scores(gold, outputs)
    cosines = outputs[:, 0].astype(np.float64)
    assert found["spearman"] == pytest.approx(spearmanr(gold, cosines).statistic)
    assert found["pearson"] == pytest.approx(pearsonr(gold, cosines).statistic)
    assert found["loss"] == pytest.approx(np.mean([((g - 1) / 4 - c) ** 2 for g, c in zip(gold, cosines, strict=True)]))
    ranks = rng.integers(1, 20, 30)
    outputs[:, 1] = ranks
    task = Similarity(PAIRS, judged_by=[PAIRS])
    found = task.scores(np.full(30, np.nan), outputs)
    assert found["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 30)
    assert found["recall_1"] == sum(rank == 1 for rank in ranks) / 30
    assert found["recall_10"] == sum(rank <= 10 for rank in ranks) / 30
    assert set(found) == set(task.metrics) == {"mrr", "recall_1", "recall_10", "random_cosine", "loss"}
    # Of two kinds each has what is defined of it.
    both = Similarity(PAIRS, judged_by=[PAIRS, SCORES]).scores(np.full(30, np.nan), outputs)
    assert both["spearman"] is None and both["mrr"] == found["mrr"]
    assert Similarity(SCORES).scores(np.array([1.0, 1.0]), outputs[:2])["spearman"] is None


# --- runs

KINDS = [PAIRS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (SCORES, TEXTS))]
"""Of which one is trained in the fast tests."""


def given_for(kind, encoder, folder, *options):
    """The arguments of a run on such rows."""
    paths = {}
    for name, rows in (("train", ROWS[kind](96)), ("test", ROWS[kind](24, first=400))):
        paths[name] = folder / f"{name}-{kind}.jsonl"
        paths[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    fixed = ["--task=similarity", "--device=cpu", "--precision=fp32", "--threads=1", "--batch-size=32", "--seeds=2"]
    return [f"--model={encoder}", *(f"--{name}={path}" for name, path in paths.items()), f"--out={folder / kind}",
            *fixed, "--learning-rate=2e-3", "--budget=8epochs", "--evaluations=2",
            *(("--batch-size=8", "--dropout=0") if kind == SCORES else ()), *options]  # fmt: skip


@pytest.fixture(scope="module")
def finished(encoder, tmp_path_factory, one_thread):
    """(kind) -> the folder of its run, and what was printed."""
    folder, made = tmp_path_factory.mktemp("similarity"), {}

    def run(kind, capsys):
        if kind not in made:
            capsys.readouterr()
            assert main(given_for(kind, encoder, folder)) == 0
            made[kind] = folder / kind, capsys.readouterr().out
        return made[kind]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_and_stands_beside_what_is_not_fine_tuned(finished, kind, capsys):
    out, said = finished(kind, capsys)
    results = json.loads((out / "results.json").read_text())
    metric = {SCORES: "spearman"}.get(kind, "mrr")
    baselines = results["baselines"]
    assert list(baselines) == ["TF-IDF", "TF-IDF + SVD", UNTUNED] and results["learned_from"] == kind
    assert results["test"][metric]["mean"] > baselines[UNTUNED]["test"][metric]["mean"] + 0.02
    assert "Without fine-tuning: TF-IDF, TF-IDF + SVD, not fine-tuned." in said and "without fine-tuning, test" in said
    before, now = baselines[UNTUNED]["test"]["random_cosine"]["mean"], results["test"]["random_cosine"]["seeds"]
    now = now[results["best_seed"] - 1]
    assert f"at random have a cosine of {now:.2f}, {before:.2f} before fine-tuning" in said
    assert results["intervals"]["test"][metric] is not None and results["ensemble"] is None
    assert (kind != SCORES) == ("Each text was sought among 24 different ones." in said)
    assert (out / "predicted.png").exists() == (kind == SCORES)
    title = {SCORES: "# Largest errors"}.get(kind, "# Found last")
    assert (out / "mistakes.md").read_text().startswith(title)
    assert (kind != TEXTS) == ("finetune.predict" in said) and "finetune.embed" in said
    # As it was named in training, for finetune.embed.
    facts = json.loads((out / "final" / "finetune.json").read_text())
    assert facts["text_columns"] == [name for name in ROWS[kind](1)[0] if name != "score"]
    card = (out / "final" / "README.md").read_text()
    assert "pipeline_tag: sentence-similarity" in card and "# Vectors of texts" in card and UNTUNED in card


@pytest.mark.parametrize("kind", KINDS[:2])
def test_results_are_those_of_the_vectors_of_the_folder(finished, kind, capsys, tmp_path):
    """finetune.embed with final/, and counts over them."""
    out, _ = finished(kind, capsys)
    results = json.loads((out / "results.json").read_text())
    rows = [json.loads(line) for line in (out.parent / f"test-{kind}.jsonl").read_text().splitlines()]
    columns = [name for name in rows[0] if name != "score"]
    sides = []
    for name in columns:
        texts = tmp_path / f"{name}.jsonl"
        texts.write_text("".join(json.dumps({"text": row[name]}) + "\n" for row in rows))
        assert embed([f"--model={out / 'final'}", str(texts), f"--out={tmp_path / name}.npy", "--device=cpu"]) == 0
        sides.append(np.load(tmp_path / f"{name}.npy").astype(np.float64))
    assert all(np.allclose(np.linalg.norm(side, axis=1), 1) for side in sides)
    cosines = sides[0] @ sides[1].T
    place = results["best_seed"] - 1
    if kind == SCORES:
        expected = spearmanr(cosines.diagonal(), [row["score"] for row in rows]).statistic
        assert results["test"]["spearman"]["seeds"][place] == pytest.approx(expected, abs=1e-6)
    else:
        ranks = [sum(value >= row[n] - 1e-6 for value in row) for n, row in enumerate(cosines)]
        expected = np.mean([1 / rank for rank in ranks])
        assert results["test"]["mrr"]["seeds"][place] == pytest.approx(expected, abs=1e-6)
    stored = outputs_of(out / f"seed-{results['best_seed']}", "test")
    np.testing.assert_allclose(stored[:, 0], cosines.diagonal(), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_cosines_of_pairs(finished, kind, capsys, tmp_path):
    out, _ = finished(kind, capsys)
    rows = [{"text_a": row["text_a"], "text_b": row["text_b"]} for row in scored_of(9, 70)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={out / 'final'}", "--text-column", "text_a", "text_b", "--device=cpu"]
    assert predict([str(file), f"--out={tmp_path / 'p.csv'}", *given]) == 0
    found = [float(line.split(",")[-1]) for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    embedder = Embedder(out / "final", "cpu")
    first, second = (embedder.embed([row[name] for row in rows]) for name in rows[0])
    np.testing.assert_allclose(found, (first * second).sum(1), atol=1e-5)
    asked = Predictor(out / "final", "cpu").predict([(row["text_a"], row["text_b"]) for row in rows])
    assert [row["predicted_score"] for row in asked] == pytest.approx(found, abs=1e-6)
    alone = tmp_path / "alone.jsonl"
    alone.write_text('{"text": "the heart"}\n')
    assert predict([f"--model={out / 'final'}", str(alone), "--device=cpu"]) == 2
    assert "is asked with pairs of texts" in capsys.readouterr().err


def test_before_fine_tuning_from_scratch_nothing_was_pretrained(encoder):
    rows = [Example("", row["text_a"], row["text_b"]) for row in scored_of(6)]
    settings = FinetuneSettings(model=str(encoder), device="cpu", sequence_length=48, from_scratch=True, seed=4)
    first, second = untuned_vectors(settings, {"test": rows})["test"]
    fresh = new_model("vectors", settings, 4).eval()
    tokenizer = WordPieceTokenizer.load(encoder)
    for texts, vectors in (([row.text for row in rows], first), ([row.text_pair for row in rows], second)):
        for text, vector in zip(texts, vectors, strict=True):
            ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode([text])[0], tokenizer.sep_id]])
            mean = fresh.bert(ids).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector, torch.nn.functional.normalize(mean, dim=0).detach(), atol=1e-5)


def test_a_sentence_encoder_is_asked_as_its_folder_says(encoder, write_rows, tmp_path, capsys):
    """Before fine-tuning, with its pooling and its length; what is learned is the mean, which is said."""
    shutil.copytree(encoder, tmp_path / "encoder")
    SentenceModel("cls", False, 9).write(tmp_path / "encoder", read_config(encoder).hidden_size)
    settings = resolve(FinetuneSettings(
        model=str(tmp_path / "encoder"), task="similarity", train=write_rows(scored_of(40)), device="cpu"))  # fmt: skip
    assert settings.sequence_length == 9
    assert resolve(replace(settings, task="auto", sequence_length="auto")).sequence_length == 48
    rows = [Example("", row["text_a"], row["text_b"]) for row in scored_of(6)]
    first, second = untuned_vectors(settings, {"test": rows})["test"]
    expected = Embedder(tmp_path / "encoder", "cpu", normalize=True)
    np.testing.assert_allclose(first, expected.embed([row.text for row in rows]), atol=1e-6)
    np.testing.assert_allclose(second, expected.embed([row.text_pair for row in rows]), atol=1e-6)
    mean = Embedder(encoder, "cpu", normalize=True).embed([row.text for row in rows])
    assert not np.allclose(first, mean, atol=1e-3)
    read_dataset(settings)
    said = f"{tmp_path / 'encoder'} are those of [CLS]; those that are learned here are means of all tokens.\n"
    assert said in capsys.readouterr().out
    # One that adds a layer, or a prompt, is a BERT to start from all the same.
    modules = json.loads((tmp_path / "encoder" / "modules.json").read_text())
    modules.append(modules[-1] | {"idx": 2, "name": "2", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "encoder" / "modules.json").write_text(json.dumps(modules))
    settings = resolve(replace(settings, sequence_length="auto"))
    assert settings.sequence_length == 48
    read_dataset(settings)
    assert "are made in a way that only sentence-transformers knows" in capsys.readouterr().out
    first, _ = untuned_vectors(settings, {"test": rows})["test"]
    np.testing.assert_allclose(first, mean, atol=1e-6)


@pytest.mark.parametrize("lowercase", [True, False])
def test_texts_that_stay_in_upper_case_are_told_of(encoder, write_rows, tmp_path, capsys, lowercase):
    folder = tmp_path / "encoder"
    shutil.copytree(encoder, folder)
    SentenceModel().write(folder, read_config(encoder).hidden_size)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_lower_case": lowercase}))
    read_dataset(resolve(FinetuneSettings(
        model=str(folder), task="similarity", train=write_rows(scored_of(40)), device="cpu")))  # fmt: skip
    assert (f"lower case before the tokenizer of {folder}; here they stay" in capsys.readouterr().out) != lowercase


def test_transformers_opens_the_folder_and_gives_the_vectors_of_the_card(finished, capsys):
    from transformers import AutoModel, BertModel

    out, _ = finished(PAIRS, capsys)
    final = out / "final"
    config = json.loads((final / "config.json").read_text())
    assert config["architectures"] == ["BertModel"] and type(AutoModel.from_pretrained(final)) is BertModel
    assert json.loads((final / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"] is True
    assert [module["name"] for module in json.loads((final / "modules.json").read_text())] == ["0", "1", "2"]
    code = re.search(r"```python\n(.*?)```", (final / "README.md").read_text(), re.DOTALL)[1]
    found: dict = {}
    exec(code.replace("path/to/this/folder", str(final)), found)
    ours = Embedder(final).embed(["One text.", "Another."])
    np.testing.assert_allclose(found["vectors"].numpy(), ours, atol=1e-5)
    assert re.search(r"cosine -?\d\.\d+\n$", capsys.readouterr().out)


@pytest.mark.slow
def test_sentence_transformers_gives_the_same_vectors(finished, capsys):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not there")
    out, _ = finished(PAIRS, capsys)
    texts = [row["document"] for row in pairs_of(20)] + ["heart " * 100, "\ufffd"]
    theirs = sentence_transformers.SentenceTransformer(str(out / "final"), device="cpu", local_files_only=True)
    assert np.abs(Embedder(out / "final").embed(texts) - theirs.encode(texts)).max() < 1e-5


def test_what_seeds_and_doubts_would_be_of_is_refused(finished, capsys, tmp_path):
    out, _ = finished(PAIRS, capsys)
    texts = tmp_path / "t.jsonl"
    texts.write_text(json.dumps(pairs_of(1)[0]) + "\n")
    assert choose([str(texts), f"--model={out}", "--rows=1"]) == 2
    assert "whose uncertainty cannot be measured" in capsys.readouterr().err
    assert predict([str(texts), f"--model={out}", "--ensemble", "--device=cpu"]) == 2
    assert "whose answers have no mean: ask its final/, without --ensemble" in capsys.readouterr().err


def test_a_folder_that_pools_otherwise_is_refused(encoder, tmp_path):
    Embedder(encoder, pooling="cls").save(tmp_path / "folder")
    with pytest.raises(FinetuneError, match="takes no mean of a text's tokens"):
        Similarity().open_model(tmp_path / "folder")


@pytest.mark.slow
def test_folds_doubts_and_parts(encoder, tmp_path, capsys):
    rows = [{**row, "site": "ab"[n % 2]} for n, row in enumerate(scored_of(60))]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={encoder}", "--task=similarity", f"--train={train}", "--folds=2", "--report-by=site",
             "--seeds=1", "--budget=2steps", "--batch-size=8", "--device=cpu", f"--out={tmp_path / 'run'}"]  # fmt: skip
    assert main(given) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert len(results["test"]["spearman"]["seeds"]) == 2 and set(results["by"]) == {"a", "b"}
    doubts = [json.loads(line)["doubt"] for line in (tmp_path / "run" / "doubtful.jsonl").read_text().splitlines()]
    assert len(doubts) == 6 and doubts == sorted(doubts, reverse=True) and 0 <= doubts[-1]
    assert "without fine-tuning, test" in capsys.readouterr().out


def test_doubt_is_how_far_off_or_how_improbable_a_pair_is():
    task = Similarity(SCORES, (1.0, 5.0))
    assert task.doubt(np.float64(3.0), np.array([0.9, np.nan, np.nan, 0.0])) == pytest.approx(0.4)
    assert task.doubt(np.float64(np.nan), np.array([0.9, 4.0, math.log(4), 0.0])) == pytest.approx(0.75)


@pytest.mark.slow
def test_models_are_compared_and_more_rows_learned(encoder, tmp_path, write_rows):
    train, test = write_rows(pairs_of(160)), write_rows(pairs_of(20, first=400), "test.jsonl")
    given = [f"--model={encoder}", "--task=similarity", f"--train={train}", f"--test={test}", "--seeds=1",
             "--budget=2steps", "--batch-size=16", "--learning-rate=1e-3", "--device=cpu"]  # fmt: skip
    assert main([*given, "--compare", "scratch", f"--out={tmp_path / 'compared'}"]) == 0
    table = (tmp_path / "compared" / "comparison.md").read_text()
    assert f"| {UNTUNED} |" in table and "| TF-IDF + SVD |" in table and "| test texts | MRR | recall at 1 |" in table
    assert main([*given, "--learning-curve", f"--out={tmp_path / 'curve'}"]) == 0
    points = json.loads((tmp_path / "curve" / "results.json").read_text())["points"]
    assert len(points) == 2 and all(point["test"]["mrr"]["mean"] > 0 for point in points)


def test_a_restart_is_exact_with_dropout_and_groups(encoder, tmp_path, monkeypatch):
    """Texts alone, where dropout is what is learned by."""
    from pretrain.engine import loop

    given = given_for(TEXTS, encoder, tmp_path, "--seeds=1", "--budget=6steps", "--log-every=1", "--mlm-weight=0.5")
    assert main(given) == 0
    step, calls = loop.step, []

    def interrupted(learner, batches):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(learner, batches)

    monkeypatch.setattr(loop, "step", interrupted)
    again = [word.replace(str(tmp_path / TEXTS), str(tmp_path / "again")) if word.startswith("--out") else word
             for word in given]  # fmt: skip
    assert [main([*again, "--checkpoint-every=2steps"]) for _ in range(2)] == [130, 0]
    # Had it started over, it would have done 10 steps.
    assert len(calls) < 10
    whole, parts = (Path(tmp_path, name, "final", "model.safetensors").read_bytes() for name in (TEXTS, "again"))
    assert whole == parts


def test_a_model_has_neither_head_nor_pooler(encoder):
    model = Similarity().build_model(FinetuneSettings(model=str(encoder)), 1)
    assert model.bert.pooler is None and model.newly_initialised == ()
    kept = Similarity().kept(model)
    assert not hasattr(kept, "bert")
    scratch = Similarity().build_model(replace(FinetuneSettings(model=str(encoder)), from_scratch=True), 1)
    word = model.bert.embeddings.word.weight
    assert word.shape == scratch.bert.embeddings.word.weight.shape
    assert not torch.equal(word, scratch.bert.embeddings.word.weight)


def scored_pairs(scores):
    return [Example("", f"one {n}", f"other {n}", score) for n, score in enumerate(scores)]


def test_the_scale_is_that_of_training_or_of_the_first_rows_with_scores():
    """The scale is that of the training rows; without scores there, of the first held-out rows that have some."""
    held = {"validation": scored_pairs([1.0, 4.0]), "test": scored_pairs([2.0, 3.0])}
    assert Similarity(SCORES, (0.0, 5.0)).with_held_out(held)[0].scale == (0, 5)
    assert Similarity(PAIRS).with_held_out(held)[0].scale == (1, 4)
    assert Similarity(PAIRS).with_held_out(held | {"validation": scored_pairs([None, None])})[0].scale == (2, 3)


def test_a_stratum_is_a_fifth_of_the_scale():
    """A stratum is a fifth of the scale."""
    task = Similarity(SCORES, (0.0, 5.0))
    assert [task.stratum(row) for row in scored_pairs([0.0, 0.5, 1.0, 2.5, 4.0, 5.0])] == list("001244")


def test_a_text_that_is_found_first_is_no_mistake(tmp_path):
    """A text that is found first is no mistake."""
    rows = scored_pairs([None, None])
    outputs = np.array([[0.9, 1, 0.1, 0.1], [0.1, 2, 0.9, 0.1]], np.float32)
    shown = HeldOut("test", 1, rows, np.full(2, np.nan), outputs)
    Similarity(PAIRS).write_files(tmp_path, shown, FinetuneSettings())
    said = (tmp_path / "mistakes.md").read_text()
    assert "one 1" in said and "one 0" not in said


def test_a_pair_of_long_texts_is_one_of_the_long_ones(small_tokenizer):
    """A pair of two long texts is one of the long ones."""
    rows = [Example("", "heart " * 20, "rate " * 20), Example("", "heart", "rate")]
    found = encode_single_texts(rows, np.zeros(2), small_tokenizer, 12)
    assert (found.num_texts, found.num_long, found.num_cut) == (2, 1, 20)


def test_what_was_not_fine_tuned_reads_no_more_of_a_text(encoder):
    """What was not fine-tuned reads no more of a text than what is."""
    same = "heart rate of the patient was"
    rows = [Example("", f"{same} stable mask", f"{same} mask heart")] * 2
    for length, is_same in ((8, True), (16, False)):
        settings = FinetuneSettings(model=str(encoder), from_scratch=True, sequence_length=length, device="cpu")
        first, second = untuned_vectors(settings, {"validation": rows})["validation"]
        assert (np.abs(first - second).max() < 1e-6) == is_same
