"""A fine-tuned teacher beside a task: gradients against transformers and torch, runs, and what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertForSequenceClassification as TheirClassifier
from transformers import BertForTokenClassification as TheirTagger

from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from finetune.auxiliary import LOSS as OF_WORDS
from finetune.batches import BatchMaker, encode_texts
from finetune.rows import Example
from finetune.run import main
from finetune.settings import FinetuneSettings
from finetune.tasks.classification import Classification
from finetune.tasks.tagging import Tagging
from finetune.teacher import LOSS, WithTeacher, divergences, open_teacher
from model import BertForPreTraining, BertForSequenceClassification, BertForTokenClassification
from model.families import read_config
from pretrain.engine import loop
from pretrain.engine.checkpoint import save_model_folder

CLASSES = ["heart", "mask", "number"]
TEXTS = ["heart rate of the patient was stable " * 9, "7 8 9 , 0 . 6", "mask 1 2 3 [mask] 4 5", "the heart"]


def test_the_divergences_are_those_of_torch():
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 20, 5) * 4
    found = divergences(logits, teacher)
    whole = nn.KLDivLoss(reduction="batchmean")((logits / 2).log_softmax(-1), (teacher / 2).softmax(-1)) * 4
    assert found.mean().item() == pytest.approx(whole.item(), rel=1e-5)
    assert not divergences(teacher, teacher).any()


def model_of(kind, encoder, labels, seed, dropout=0.0):
    """A model of labels under a head of its own."""
    torch.manual_seed(seed)
    config = {"id2label": dict(enumerate(labels)), "hidden_dropout_prob": dropout, "new_head": True}
    model = kind.from_pretrained(encoder, attention_probs_dropout_prob=dropout, **config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def both(task, kind, encoder, small_tokenizer, folder):
    """A student in training mode, and its teacher with the labels in another order, out of a folder."""
    order = task.labels[1:] + task.labels[:1]
    save_model_folder(model_of(kind, encoder, order, seed=1, dropout=0.3), small_tokenizer, folder / "teacher")
    settings = FinetuneSettings(model=str(encoder), teacher=str(folder / "teacher"), sequence_length=24, device="cpu")
    teacher = open_teacher(settings, task, small_tokenizer, [])
    student = model_of(kind, encoder, task.labels, seed=2).train()
    student.save_pretrained(folder / "student")
    return student, teacher


def gradients_alike(student, theirs):
    expected = dict(theirs.named_parameters())
    for name, parameter in student.named_parameters():
        names = student.names.of(name)
        for one, found in zip(names, parameter.grad.chunk(len(names)), strict=True):
            torch.testing.assert_close(found, expected[one].grad, rtol=1e-3, atol=1e-4, msg=one)


def padded(batch):
    """Inputs of transformers, and the column of each token."""
    starts = batch.sequence_starts.tolist()
    rows = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids,
            "attention_mask": torch.ones_like(batch.input_ids)}  # fmt: skip
    return {
        name: nn.utils.rnn.pad_sequence([v[a:b] for a, b in zip(starts, starts[1:], strict=False)], batch_first=True)
        for name, v in rows.items()
    }


def test_a_student_of_classes_learns_as_with_plain_torch(encoder, small_tokenizer, tmp_path):
    """In windows, of which each counts as its share of its text."""
    task = Classification(CLASSES)
    student, teacher = both(task, BertForSequenceClassification, encoder, small_tokenizer, tmp_path)
    encoded = encode_texts([(text, None) for text in TEXTS], np.array([0, 2, 1, 0]), small_tokenizer, 24, "windows")
    batch = BatchMaker(encoded, small_tokenizer, 10_000).packed(np.arange(len(encoded.sequences)))
    objective = WithTeacher(task.objective(encoded, FinetuneSettings()), teacher, 0.3)
    counts, sums = objective.counts(batch), objective.loss_sums(student, batch)
    assert counts == {"label": pytest.approx(4), LOSS: pytest.approx(4)} and len(batch.labels) > 5
    (sums["label"] + sums[LOSS]).backward()
    theirs = TheirClassifier.from_pretrained(tmp_path / "student").train()
    of_teacher = TheirClassifier.from_pretrained(tmp_path / "teacher").eval()
    columns = [of_teacher.config.label2id[name] for name in CLASSES]
    given = padded(batch)
    logits = theirs(**given).logits
    with torch.no_grad():
        target = (of_teacher(**given).logits[:, columns] / 2).softmax(-1)
    apart = nn.KLDivLoss(reduction="none")((logits / 2).log_softmax(-1), target).sum(-1) * 4
    right = nn.CrossEntropyLoss(reduction="none")(logits, batch.labels)
    loss = ((0.7 * right + 0.3 * apart) * batch.weights).sum()
    loss.backward()
    assert (sums["label"] + sums[LOSS]).item() == pytest.approx(loss.item(), rel=1e-4)
    gradients_alike(student, theirs)
    assert all(p.grad is None and not p.requires_grad for p in teacher.model.parameters())
    assert torch.equal(teacher.logits(batch), teacher.logits(batch)), "no dropout in the teacher"


def test_a_student_of_tags_learns_as_with_plain_torch(encoder, small_tokenizer, tmp_path):
    task = Tagging(["O", "B-a", "I-a"])
    student, teacher = both(task, BertForTokenClassification, encoder, small_tokenizer, tmp_path)
    rows = {"the heart rate": ((0, 3), (4, 9), (10, 14)), "mask 1": ((0, 4), (5, 6))}
    examples = [Example(text, text, words=words) for text, words in rows.items()]
    encoded = task.encode(examples, small_tokenizer, 24, "windows")
    batch = BatchMaker(encoded, small_tokenizer, 10_000).packed(np.arange(len(encoded.sequences)))
    objective = WithTeacher(task.objective(encoded, FinetuneSettings()), teacher, 0.5)
    sums = objective.loss_sums(student, batch)
    (sums["label"] + sums[LOSS]).backward()
    theirs = TheirTagger.from_pretrained(tmp_path / "student").train()
    of_teacher = TheirTagger.from_pretrained(tmp_path / "teacher").eval()
    columns, given = [of_teacher.config.label2id[name] for name in task.labels], padded(batch)
    logits = theirs(**given).logits[given["attention_mask"] > 0][batch.places]
    with torch.no_grad():
        target = (of_teacher(**given).logits[given["attention_mask"] > 0][batch.places][:, columns] / 2).softmax(-1)
    apart = nn.KLDivLoss(reduction="batchmean")((logits / 2).log_softmax(-1), target) * 4
    loss = 0.5 * nn.CrossEntropyLoss()(logits, batch.labels[:, 1]) + 0.5 * apart
    loss.backward()
    assert (sums["label"] + sums[LOSS]).item() == pytest.approx(5 * loss.item(), rel=1e-4)
    for parameter in student.parameters():
        parameter.grad /= 5
    gradients_alike(student, theirs)


def test_a_batch_without_a_text_has_no_loss(encoder, small_tokenizer, tmp_path):
    task = Classification(CLASSES)
    student, teacher = both(task, BertForSequenceClassification, encoder, small_tokenizer, tmp_path)
    encoded = encode_texts([(TEXTS[1], None)], np.array([0]), small_tokenizer, 24, "head")
    empty = BatchMaker(encoded, small_tokenizer, 99).empty_batch()
    objective = WithTeacher(task.objective(encoded, FinetuneSettings()), teacher, 0.5)
    assert objective.counts(empty)[LOSS] == 0 == objective.loss_sums(student, empty)[LOSS].item()


def test_a_step_is_the_same_in_any_micro_batches(encoder, small_tokenizer, tmp_path):
    task, found = Classification(CLASSES), []
    student, teacher = both(task, BertForSequenceClassification, encoder, small_tokenizer, tmp_path)
    encoded = encode_texts([(text, None) for text in TEXTS], np.array([0, 2, 1, 0]), small_tokenizer, 24, "windows")
    objective = WithTeacher(task.objective(encoded, FinetuneSettings()), teacher, 0.5)
    for tokens in (10_000, 1):
        student.zero_grad()
        batches = list(BatchMaker(encoded, small_tokenizer, tokens).micro_batches(np.arange(4)))
        sums = [objective.loss_sums(student, batch) for batch in batches]
        loss = sum(sum(each.values()) for each in sums)
        loss.backward()
        counts = sum(objective.counts(batch)[LOSS] for batch in batches)
        found.append((len(batches), counts, loss.item(), student.bert.pooler.dense.weight.grad.clone()))
    (one, texts, loss, gradient), (many, *others, other_gradient) = found
    assert one == 1 < many and others == [pytest.approx(texts), pytest.approx(loss, rel=1e-5)]
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-4, atol=1e-5)


# --- runs


def arguments(encoder, train, out, *options):
    given = [f"--model={encoder}", f"--train={train}", f"--out={out}", "--device=cpu", "--precision=fp32"]
    return [*given, "--threads=1", "--budget=6steps", "--evaluations=1", "--seeds=1", "--log-every=1", *options]


@pytest.fixture
def taught(encoder, make_rows, write_rows, tmp_path, one_thread):
    """(name of the folder, options) -> the arguments of a run with a teacher, which is fine-tuned first."""
    train = write_rows(make_rows(48))
    assert main(arguments(encoder, train, tmp_path / "of_teacher", "--budget=20steps", "--learning-rate=2e-3")) == 0
    teacher = shutil.copytree(tmp_path / "of_teacher" / "final", tmp_path / "teacher")

    def given(name, *options):
        return arguments(encoder, train, tmp_path / name, f"--teacher={teacher}", *options)

    return given


def weights(folder):
    return load_file(folder / "final" / "model.safetensors")


def test_it_goes_on_after_an_interruption_with_the_same_teacher_alone(taught, encoder, small_tokenizer, tmp_path,
                                                                      monkeypatch, capsys):  # fmt: skip
    step, calls = loop.step, []
    assert main(taught("whole")) == 0

    def interrupted(learner, batches):
        calls.append(learner)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(learner, batches)

    monkeypatch.setattr(loop, "step", interrupted)
    assert main(taught("parts", "--checkpoint-every=2steps")) == 130
    monkeypatch.undo()
    aside = shutil.copytree(tmp_path / "teacher", tmp_path / "aside")
    model_of(BertForSequenceClassification, encoder, CLASSES, seed=7).save_pretrained(tmp_path / "teacher")
    capsys.readouterr()
    assert main(taught("parts", "--checkpoint-every=2steps")) == 2
    assert "from another model or teacher" in capsys.readouterr().err
    shutil.copytree(aside, tmp_path / "teacher", dirs_exist_ok=True)
    assert main(taught("parts", "--checkpoint-every=2steps")) == 0
    found, expected = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "seed-1" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if f"{LOSS}_loss" in line] == list(range(1, 7))
    assert "| teacher_weight | 0.5 |" in (tmp_path / "whole" / "final" / "README.md").read_text()


@pytest.mark.slow
def test_its_share_acts_and_masked_words_may_be_learned_too(taught, tmp_path, capsys):
    options = {"half": [], "most": ["--teacher-weight=0.9"], "words": ["--mlm-weight=1"]}
    for name, more in options.items():
        assert main(taught(name, *more)) == 0
    assert len({(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in options}) == 3
    rows = (tmp_path / "words" / "seed-1" / "metrics.jsonl").read_text()
    assert f"{OF_WORDS}_loss" in rows and f"{LOSS}_loss" in rows
    capsys.readouterr()
    assert main(taught("plan", "--dry-run")) == 0
    assert "texts/s" in capsys.readouterr().out and not (tmp_path / "plan").exists()


# --- what is refused


def assert_refused(given, words, out, capsys):
    capsys.readouterr()
    assert main(given) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not out.exists(), said


@pytest.mark.parametrize(("more", "words"), [
    (["--teacher=nowhere"], "nowhere is not a folder"),
    (["--teacher-weight=0.3"], "--teacher-weight is for a --teacher"),
    (["--teacher=x", "--teacher-weight=0"], "--teacher-weight 0 is no share"),
    (["--teacher=x", "--folds=3"], "--teacher cannot be combined with --folds, which holds back"),
    (["--teacher=x", "--learning-curve"], "--teacher cannot be combined with --learning-curve"),
    (["--teacher=x", "--compare=scratch"], "--teacher cannot be combined with --compare: drop one"),
])  # fmt: skip
def test_a_mistake_is_refused(more, words, encoder, make_rows, write_rows, tmp_path, capsys):
    given = arguments(encoder, write_rows(make_rows(48)), tmp_path / "run", *more)
    assert_refused(given, words, tmp_path / "run", capsys)


def test_a_teacher_that_does_not_fit_is_refused(encoder, small_tokenizer, make_rows, write_rows, tmp_path, capsys):
    train = write_rows(make_rows(48))

    def refused(words, folder, *more):
        given = arguments(encoder, train, tmp_path / "run", f"--teacher={folder}", *more)
        assert_refused(given, words, tmp_path / "run", capsys)

    def saved(name, labels=CLASSES, tokenizer=small_tokenizer):
        model = model_of(BertForSequenceClassification, encoder, labels, seed=1)
        save_model_folder(model, tokenizer, tmp_path / name)
        return tmp_path / name

    refused("it lacks classifier.weight", encoder)
    refused("has other classes than", saved("other", ["heart", "mask", "word"]))
    refused("heart, mask, word; heart, mask, number", saved("other", ["heart", "mask", "word"]))
    capsys.readouterr()
    assert (
        main([*arguments(encoder, train, tmp_path / "run", f"--teacher={tmp_path / 'other'}"), "--show-text=no"]) == 2
    )
    assert "heart" not in capsys.readouterr().err
    foreign = WordPieceTokenizer(small_tokenizer.pieces[:-1], lowercase=True, strip_accents=False)
    refused("has another tokenizer than", saved("foreign", tokenizer=foreign))
    config = json.loads((saved("short") / "config.json").read_text())
    tensors = load_file(tmp_path / "short" / "model.safetensors")
    name = "bert.embeddings.position_embeddings.weight"
    save_file(tensors | {name: tensors[name][:16].clone()}, tmp_path / "short" / "model.safetensors", {"format": "pt"})
    (tmp_path / "short" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16}))
    refused("reads 16 tokens", tmp_path / "short")


def test_a_student_without_a_second_segment_is_no_student_of_pairs(encoder, make_rows, write_rows, tmp_path,
                                                                   small_tokenizer, capsys):  # fmt: skip
    save_model_folder(
        model_of(BertForSequenceClassification, encoder, CLASSES, 1), small_tokenizer, tmp_path / "teacher"
    )
    config = replace(read_config(encoder), type_vocab_size=1)
    save_model_folder(BertForPreTraining(config), small_tokenizer, tmp_path / "student")
    pairs = write_rows([{**row, "text_pair": "the heart"} for row in make_rows(48)], "pairs.jsonl")
    given = arguments(tmp_path / "student", pairs, tmp_path / "run", f"--teacher={tmp_path / 'teacher'}")
    assert_refused(given, "reads pairs of texts in another way than", tmp_path / "run", capsys)


def test_a_distilbert_learns_from_a_bert_of_its_vocabulary(other_encoder, encoder, make_rows, write_rows, tmp_path,
                                                           small_tokenizer, capsys, one_thread):  # fmt: skip
    student, teacher = other_encoder("distilbert"), tmp_path / "teacher"
    save_model_folder(model_of(BertForSequenceClassification, encoder, CLASSES, 1), small_tokenizer, teacher)
    given = arguments(student, write_rows(make_rows(48)), tmp_path / "run", f"--teacher={teacher}")
    assert main(given) == 0
    losses = [json.loads(line) for line in (tmp_path / "run/seed-1/metrics.jsonl").read_text().splitlines()]
    assert any(row.get("soft_loss", 0) > 0 for row in losses)
    assert json.loads((tmp_path / "run/final/config.json").read_text())["model_type"] == "distilbert"
    # It is not told which text is the second one, as the teacher has to be.
    pairs = write_rows([{**row, "text_pair": "the heart"} for row in make_rows(48)], "pairs.jsonl")
    given = arguments(student, pairs, tmp_path / "pairs", f"--teacher={teacher}")
    assert_refused(given, "reads pairs of texts in another way than", tmp_path / "pairs", capsys)


def test_a_task_without_classes_has_no_teacher(encoder, write_rows, small_tokenizer, tmp_path, capsys):
    save_model_folder(model_of(BertForSequenceClassification, encoder, ["a"], 1), small_tokenizer, tmp_path / "teacher")
    train = write_rows([{"text": f"the heart {number}", "label": number + 0.5} for number in range(40)])
    given = arguments(encoder, train, tmp_path / "run", "--task=regression", f"--teacher={tmp_path / 'teacher'}")
    assert_refused(given, "--teacher is for classification and tagging, not for regression", tmp_path / "run", capsys)
