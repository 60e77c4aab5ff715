"""Every command that a page or a recipe prints: understood as printed, and carried out as far as a plan goes."""

import gzip
import importlib
import json
import random
import re
import shlex
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from data_prep.run import main as prepare
from data_prep.text import builtin
from finetune.predictor import Facts
from model import (
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from model.tasks import BertForVectors
from pretrain.engine.checkpoint import save_model_folder

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "recipes").glob("*.yaml"))]
LAUNCHER = r"(?:python|torchrun(?: --[\w-]+ \S+)+)"
COMMAND = re.compile(LAUNCHER + r" -m ((?:data_prep|pretrain|finetune)\.\w+)((?: [^\n#`&|]+)?)")
STAGES = ("data_prep.run", "pretrain.run", "finetune.run")


def commands(slow=()):
    """(module, arguments) of each, once, named by the page where it comes first.

    Args:
        slow: pages of which each takes its time.
    """
    seen = set()
    for page in PAGES:
        for module, arguments in COMMAND.findall(page.read_text()):
            given = tuple(shlex.split(arguments))
            if (module, given) not in seen:
                seen.add((module, given))
                reads_built_in = module in STAGES and (not given or "recipes/builtin.yaml" in given)
                marks = [pytest.mark.slow] if reads_built_in or page in slow else []
                yield pytest.param(module, given, id=f"{page.name}: {module} {' '.join(given)}", marks=marks)


def run(module, given):
    return importlib.import_module(module).main(list(given))


@pytest.mark.parametrize(("module", "given"), commands())
def test_it_is_understood(module, given, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run(module, [*given, "--print-config"]) == 0, capsys.readouterr().err


def write_letters(path: Path, count: int, seed: int) -> None:
    """Rows of made-up letters: id, text, label, patient."""
    rng = random.Random(seed)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        if ".csv" in path.name:
            file.write("id,text,label,patient\n")
        for number in range(count):
            text = " ".join(rng.choices(["the", "of", "heart", "rate", "patient", "was", "stable"], k=9))
            label = ("well", "sick")[number % 2]
            row = {"id": number, "text": f"{text} {number}", "label": label, "patient": number // 3}
            file.write(",".join(map(str, row.values())) + "\n" if ".csv" in path.name else json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def owner(small_tokenizer, other_encoder, tmp_path_factory) -> Path:
    """A folder with everything that the pages speak of."""
    folder = tmp_path_factory.mktemp("owner")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    texts = [text[:4000] for _, text in islice(builtin.documents(), 60)]
    for name in ("notes", "wikipedia"):
        (folder / name).mkdir()
        for number, text in enumerate(texts):
            (folder / name / f"{number}.txt").write_text(text)
    with gzip.open(folder / "articles.txt.gz", "wt") as file:
        file.write("\n\n".join(texts))
    for number, name in enumerate(["labels.csv", "test.csv", "new.csv", "unlabelled.csv", "letters.csv", "train.jsonl",
                                   "test.jsonl", "sentences.jsonl", "reviews.jsonl.gz"]):  # fmt: skip
        write_letters(folder / name, 60, number)
    (folder / "FOLDER" / "pmc-rct-text").mkdir(parents=True)
    for part, own in (("train", texts[:50]), ("test", texts[50:])):
        with gzip.open(folder / "FOLDER" / "pmc-rct-text" / f"{part}.txt.gz", "wt") as file:
            file.write("\n\n".join(own))
    (folder / "FOLDER" / "rct-sections").mkdir()
    for number, part in enumerate(("train", "validation", "test")):
        write_letters(folder / "FOLDER" / "rct-sections" / f"{part}.jsonl.gz", 60, number)
    for name in ("train.conll", "test.conll"):
        (folder / name).write_text("".join(f"the\tO\nheart\tB-organ\n{n}\tO\n\n" for n in range(40)))
    for name in ("questions.json", "more_questions.json"):
        questions = [{"id": str(n), "question": f"what {n}?", "answers": [{"text": "heart", "answer_start": 4}]}
                     for n in range(40)]  # fmt: skip
        article = {"title": "a", "paragraphs": [{"context": "the heart rate", "qas": questions}]}
        (folder / name).write_text(json.dumps({"data": [article]}))
    for name, first in (("pairs.jsonl", 0), ("more_pairs.jsonl", 40)):
        rows = [{"query": f"the heart {n}", "document": f"rate {n} of the patient"} for n in range(first, first + 40)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "new.txt").write_text("the heart\n")
    (folder / "sentences.txt").write_text("Mrs. [[Ruth Adler]] was admitted on Monday with chest pain.\n")
    (folder / "names.txt").write_text("Ruth Eagle\nJohn Adler\n")
    given = [f"--corpus={folder}/notes", f"--out={folder}/prepared", "--vocab-size=512", "--workers=1"]
    assert prepare(given) == 0
    shutil.copytree(folder / "prepared", folder / "articles")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=small_tokenizer.vocab_size, max_position_embeddings=128, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, id2label={0: "well", 1: "sick"},
    )  # fmt: skip
    pretrained = ["bert-folder", "another-bert", *(f"runs/{name}/final" for name in (
        "notes", "articles", "letters", "builtin", "student"))]  # fmt: skip
    for name in pretrained:
        save_model_folder(BertForPreTraining(config), small_tokenizer, folder / name)
    shutil.copytree(other_encoder("roberta"), folder / "roberta-base")
    for name in ("runs/labels/final", "runs/labels/seed-1/model", "runs/compared/articles/final"):
        save_model_folder(BertForSequenceClassification(config), small_tokenizer, folder / name)
        Facts(("text",), 128, "head").write(folder / name)
    (folder / "runs/labels/seed-1/results.json").write_text("{}")
    tags = replace(config, num_labels=3, id2label={0: "O", 1: "B-organ", 2: "I-organ"})
    save_model_folder(BertForTokenClassification(tags), small_tokenizer, folder / "runs/names/final")
    Facts(("tokens",), 128, "windows", "tagging").write(folder / "runs/names/final")
    save_model_folder(BertForQuestionAnswering(replace(config)), small_tokenizer, folder / "runs/answers/final")
    Facts(("question", "context"), 128, "windows", "question-answering").write(folder / "runs/answers/final")
    save_model_folder(BertForVectors(replace(config)).bert, small_tokenizer, folder / "runs/vectors/final")
    return folder


@pytest.mark.parametrize(("module", "given"), commands(slow=[*(ROOT / "docs").glob("*.md")]))
def test_it_makes_a_plan(module, given, owner, small_builtin, monkeypatch, capsys):
    """The stages with --dry-run, the model, its batches and the vocabulary small; the rest runs as it is printed."""
    monkeypatch.chdir(owner)
    if module == "finetune.predict" and "--model" not in given:
        pytest.skip("reads standard input")
    is_stage = module in STAGES and "--help" not in given
    if is_stage:
        assert run(module, [*given, "--print-config"]) == 0
        chosen = yaml.safe_load(capsys.readouterr().out)
        # What the owner has at the places that are printed, no run has made.
        given = [*given, "--dry-run", "--out=planned"]
        if module == "pretrain.run":
            given += ["--batch-size=4"]
            given += ["--device=cpu"] if chosen["init_from"] or chosen["teacher"] else ["--device=cpu", "--preset=tiny"]
        if chosen.get("vocab_size", "auto") != "auto":
            given += ["--vocab-size=512"]
        if chosen.get("extend_vocab"):
            given += ["--extend-vocab=50"]
    for left_by_another in ("predicted.csv", "labelled.jsonl", "to_label.jsonl", "vectors.npy", "words.parquet"):
        (owner / left_by_another).unlink(missing_ok=True)
    before = set(owner.rglob("*"))
    assert run(module, given) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    if is_stage:
        assert "nothing was kept" in printed and set(owner.rglob("*")) == before
