"""Masked words that are learned beside a task."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForMaskedLM

from finetune.auxiliary import LOSS, Masking, WithMaskedWords, take_mlm_head
from finetune.batches import BatchMaker, TextStream, encode_texts
from finetune.dataset import read_dataset
from finetune.finetuning import prepare
from finetune.resolve import resolve
from finetune.run import main
from finetune.settings import FinetuneSettings
from finetune.tasks.classification import Classification, ClassificationObjective
from finetune.training import SeedTraining, learned
from pretrain.engine import loop
from pretrain.engine.batches import Batches, Position
from pretrain.engine.distributed import World
from pretrain.engine.process import Interruption

TEXTS = [
    ("heart rate of the patient was stable", None),
    ("7 8 9 , 0 . 6", "the heart"),
    ("mask 1 2 3 [mask] 4 5", None),
]
WEIGHT = 0.5


@pytest.fixture
def maker(small_tokenizer):
    encoded = encode_texts(TEXTS * 4, np.arange(12) % 3, small_tokenizer, 32, "head")
    return BatchMaker(encoded, small_tokenizer, 10_000, masking=Masking(small_tokenizer, seed=3))


def rows_of(batch, ids):
    """The sequences of a packed batch, as lists."""
    starts = batch.sequence_starts.tolist()
    return [ids[a:b].tolist() for a, b in zip(starts, starts[1:], strict=False)]


@pytest.fixture
def model(encoder):
    labels = {"id2label": {0: "a", 1: "b", 2: "c"}}
    settings = FinetuneSettings(model=str(encoder), dropout=0.0)
    model = Classification(list(labels["id2label"].values())).build_model(settings, 1)
    take_mlm_head(model, encoder)
    return model.train()


def test_loss_and_gradient_are_those_of_transformers(model, maker, encoder):
    maker.begin(7, 0.0)
    batch = next(maker.micro_batches(np.arange(12)))
    copy, objective = batch.masked, WithMaskedWords(ClassificationObjective(), WEIGHT)
    counts, sums = objective.counts(batch), objective.loss_sums(model, batch)
    assert counts == {"label": 12.0, LOSS: len(copy.targets)} and list(sums) == list(counts)
    sums[LOSS].backward()
    labels = torch.full_like(copy.input_ids, -100)
    labels[copy.positions] = copy.targets
    torch.testing.assert_close(torch.where(labels < 0, copy.input_ids, labels), batch.input_ids)
    theirs = BertForMaskedLM.from_pretrained(encoder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    pad = torch.nn.utils.rnn.pad_sequence
    fields = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "labels": -100}
    values = copy.input_ids, torch.ones_like(copy.input_ids), copy.token_type_ids, labels
    given = {
        name: pad([torch.tensor(row) for row in rows_of(copy, each)], batch_first=True, padding_value=fill)
        for (name, fill), each in zip(fields.items(), values, strict=True)
    }
    loss = WEIGHT * counts[LOSS] * theirs(**given).loss
    loss.backward()
    assert sums[LOSS].item() == pytest.approx(loss.item(), rel=1e-5)
    ours, word = model.bert.embeddings, theirs.bert.embeddings.word_embeddings
    torch.testing.assert_close(ours.word.weight.grad, word.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.mlm_head.dense.weight.grad, theirs.cls.predictions.transform.dense.weight.grad,
                               rtol=1e-4, atol=1e-5)  # fmt: skip
    model.zero_grad()
    # The task reads the texts as they are.
    torch.testing.assert_close(sums["label"], ClassificationObjective().loss_sums(model, batch)["label"])


def test_each_step_masks_other_words_and_processes_agree(maker):
    def masked(step, texts):
        maker.begin(step, 0.0)
        batch = next(maker.micro_batches(np.array(texts)))
        return {tuple(row) for row in rows_of(batch.masked, batch.masked.input_ids)}

    every = list(range(12))
    assert masked(5, every) == masked(5, every) != masked(6, every)
    assert masked(5, every[::2]) | masked(5, every[1::2]) == masked(5, every)


def test_each_seed_masks_other_words(encoder, make_rows, write_rows, tmp_path):
    texts = write_rows(make_rows(48))
    asked = FinetuneSettings(model=str(encoder), train=texts, budget="1steps", device="cpu", mlm_weight=WEIGHT)
    settings = resolve(asked)
    material = prepare(settings, read_dataset(settings))

    def masked(seed):
        maker = SeedTraining(settings, seed, tmp_path / "run", material, World(), Interruption())._training_maker()
        maker.begin(1, 0.0)
        return next(maker.micro_batches(np.arange(12))).masked.input_ids.tolist()

    assert masked(1) == masked(1) != masked(2)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_from_scratch_there_is_no_head_of_the_model_and_later_that_of_the_checkpoint(encoder, from_scratch):
    settings = FinetuneSettings(model=str(encoder), mlm_weight=WEIGHT, from_scratch=from_scratch)
    model = Classification(["a", "b"]).build_model(settings, 1)
    before = load_file(encoder / "model.safetensors")["cls.predictions.transform.dense.weight"]
    for checkpoint, is_its_head in (("", not from_scratch), (str(encoder), True)):
        learned(settings, ClassificationObjective(), model, torch.arange(9), checkpoint)
        assert torch.equal(model.mlm_head.dense.weight, before) is is_its_head


def test_a_batch_without_a_text_has_no_loss(model, maker):
    objective, empty = WithMaskedWords(ClassificationObjective(), WEIGHT), maker.empty_batch()
    assert objective.counts(empty)[LOSS] == 0 == objective.loss_sums(model, empty)[LOSS].item()


def arguments(encoder, train, out, *options):
    given = [f"--model={encoder}", f"--train={train}", f"--out={out}", "--device=cpu", "--precision=fp32"]
    return [*given, "--threads=1", "--budget=9steps", "--evaluations=1", "--seeds=1", "--log-every=1", *options]


def test_it_goes_on_after_an_interruption_with_the_same_head(encoder, make_rows, write_rows, tmp_path, monkeypatch,
                                                             one_thread):  # fmt: skip
    train, step, calls = write_rows(make_rows(48)), loop.step, []
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    option = f"--mlm-weight={WEIGHT}"
    assert main(arguments(encoder, train, whole, option)) == 0

    def interrupted(learner, batches):
        calls.append(learner)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return step(learner, batches)

    monkeypatch.setattr(loop, "step", interrupted)
    assert main(arguments(encoder, train, parts, option, "--checkpoint-every=3steps")) == 130
    state = load_file(parts / "seed-1" / "checkpoints" / "step-00000003" / "model.safetensors")
    before = load_file(encoder / "model.safetensors")
    name = "cls.predictions.transform.dense.weight"
    assert not torch.equal(state[name], before[name])
    monkeypatch.undo()
    assert main(arguments(encoder, train, parts, option, "--checkpoint-every=3steps")) == 0
    found, expected = (load_file(out / "final" / "model.safetensors") for out in (parts, whole))
    assert found.keys() == expected.keys() and not any(key.startswith("cls.") for key in found)
    assert all(torch.equal(found[key], expected[key]) for key in found)
    lines = [json.loads(line) for line in (whole / "seed-1" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if f"{LOSS}_loss" in line] == list(range(1, 10))


def test_it_acts_with_every_start(encoder, make_rows, write_rows, tmp_path, one_thread, capsys):
    train, weights = write_rows(make_rows(48)), {}
    options = {"none": [], "beside": ["--mlm-weight=1"], "scratch": ["--mlm-weight=1", "--from-scratch"],
               "scratch alone": ["--from-scratch"]}  # fmt: skip
    for name, given in options.items():
        assert main(arguments(encoder, train, tmp_path / name, *given)) == 0
        weights[name] = (tmp_path / name / "final" / "model.safetensors").read_bytes()
    assert len(set(weights.values())) == 4
    # A fine-tuned model has no MLM head any more.
    assert main(arguments(tmp_path / "none" / "final", train, tmp_path / "again", "--mlm-weight=1")) == 0
    assert "has no MLM head: a new one starts at random" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "message"), [
    (["--mlm-weight=-1"], "--mlm-weight -1 is out of range"),
    (["--mlm-weight=0.5", "--freeze-encoder"], "drop one"),
])  # fmt: skip
def test_what_cannot_be_is_said(encoder, tmp_path, capsys, options, message):
    assert main([f"--model={encoder}", f"--out={tmp_path / 'x'}", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_batches_are_those_of_the_task(maker, small_tokenizer):
    plain = BatchMaker(maker.encoded, small_tokenizer, 10_000)
    drawn = []
    for each in (maker, plain):
        batches = Batches(TextStream(each.encoded, 1), each, 4, Position(), World())
        batches.draw(1)
        drawn.append(batches.micro_batches()[0])
    assert torch.equal(drawn[0].input_ids, drawn[1].input_ids)
    assert drawn[1].masked is None and replace(drawn[0], masked=None).labels.tolist() == drawn[1].labels.tolist()
