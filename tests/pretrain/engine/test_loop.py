"""The loop and its step: however a step is divided, delayed or interrupted, its numbers are the same."""

import copy
import json
import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_prep.errors import Interrupted
from data_prep.examples.packing import ShardExamples
from model import BertConfig, BertForPreTraining
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.engine import loop
from pretrain.engine.batches import Batches, Position
from pretrain.engine.checkpoint import Checkpoints, read_state
from pretrain.engine.counters import Counters
from pretrain.engine.distributed import World
from pretrain.engine.loop import Run, record_evaluation, stop_if_asked, train
from pretrain.engine.optimizer import DepthRates, Optimizer
from pretrain.engine.process import Interruption
from pretrain.engine.progress import MetricsFile, Progress
from pretrain.engine.settings import LoopSettings, PretrainError
from pretrain.engine.step import Learner, backward, change_weights, step
from pretrain.masked_words import MaskedWords
from pretrain.next_sentence import NextSentence
from pretrain.objective import PretrainingObjective


@pytest.fixture
def model(prepared):
    torch.manual_seed(0)
    return BertForPreTraining(tiny_config(prepared, dropout=0.0))


def tiny_config(prepared, dropout):
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    return BertConfig.from_preset("tiny", **sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def examples_and_maker(prepared, tokens=10**9):
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1))
    examples, _ = next(stream.batches(24, Position()))
    return examples, BatchMaker(prepared.train, prepared.tokenizer, "token", tokens)


class SameAgain:
    """A stream whose global batches are all the same."""

    def __init__(self, examples):
        self.examples = examples

    def batches(self, batch_size, start):
        while True:
            yield self.examples, start

    def epochs(self, position):
        return 0.0


def drawn(examples, maker):
    batches = Batches(SameAgain(examples), maker, len(examples), Position(), World())
    batches.draw()
    return batches


PARTS = (MaskedWords(np.ones(1)), NextSentence())
SETTINGS = LoopSettings(
    budget="10steps", optimizer="adamw", learning_rate=1e-3, precision="fp32", device="cpu", evaluations=1,
    checkpoint_every="1d",
)  # fmt: skip


def make_learner(model, objective=None, counters=None, world=None, **changes):
    settings = replace(SETTINGS, **changes)
    learner = Learner(settings, model, objective or PretrainingObjective(PARTS), seed=1, counters=counters)
    # Its processes are there in name alone.
    learner.world = world or learner.world
    return learner


def make_run(prepared, model, folder, budget, objective=None, counters=None, world=None, **changes):
    """A run that writes checkpoints and metrics into a folder, and goes on from the newest checkpoint found there."""
    checkpoints = Checkpoints(folder / "checkpoints", prepared.tokenizer, keep=2)
    newest = checkpoints.newest_intact()
    counters = counters or Counters(**(read_state(newest, ())["counters"] if newest else {}))
    changes = {"budget": budget, **changes}
    return Run(
        learner=make_learner(model, objective, counters, world, **changes),
        settings=replace(SETTINGS, **changes),
        checkpoints=checkpoints,
        progress=Progress(MetricsFile(folder / "metrics.jsonl"), 1, str, lambda rows: None),
        judge=lambda found: [found["loss"]],
        interruption=Interruption(),
    )


def taken(learner, batches):
    """A step whose verdict has been read."""
    outcome = step(learner, batches)
    learner.counters.count(outcome)
    return outcome


def test_a_batch_without_labels_trains_masked_words_alone(prepared, model):
    examples, maker = examples_and_maker(prepared)
    examples.label[:] = -100
    learner = make_learner(model)
    found = taken(learner, drawn(examples, maker))
    assert found.losses.keys() == {"mlm"} and math.isfinite(found.losses["mlm"]) and math.isfinite(found.norm)
    assert learner.counters.skipped == 0


def test_a_step_is_the_same_however_it_is_divided(prepared, model):
    results = []
    for tokens in (10**9, 300, 1):
        twin = copy.deepcopy(model)
        examples, maker = examples_and_maker(prepared, tokens)
        found = taken(make_learner(twin), drawn(examples, maker))
        results.append((found.losses, found.norm, twin))
    (losses, norm, whole), *others = results
    for other_losses, other_norm, other in others:
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert other_norm == pytest.approx(norm, rel=1e-4)
        for (name, a), b in zip(whole.named_parameters(), other.parameters(), strict=True):
            # Adam's first step is the sign of the gradient: entries with almost none may go either way.
            close = torch.isclose(a, b, rtol=1e-3, atol=1e-5)
            assert close.float().mean() > 0.999, name


def test_dropout_acts_in_training_and_depends_on_the_step_alone(prepared):
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(prepared, dropout=0.3))
    examples, maker = examples_and_maker(prepared)

    def first_loss(at_step):
        learner = make_learner(copy.deepcopy(model), counters=Counters(step=at_step))
        return taken(learner, drawn(examples, maker)).losses["mlm"]

    assert first_loss(0) == first_loss(0) != first_loss(1)


def test_too_little_memory_halves_the_micro_batches_and_changes_no_number(prepared, model, capsys):
    class Scarce(PretrainingObjective):
        """An objective on a device that has room for `room` tokens."""

        room, calls = 10**9, 0

        def loss_sums(self, model, batch):
            Scarce.calls += 1
            if batch.num_tokens > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().loss_sums(model, batch)

    examples, maker = examples_and_maker(prepared)
    plenty, scarce = copy.deepcopy(model), copy.deepcopy(model)
    expected = taken(make_learner(plenty, Scarce(PARTS)), drawn(examples, maker))
    assert Scarce.calls == 1
    Scarce.room = int(examples.lengths().sum()) // 3
    learner = make_learner(scarce, Scarce(PARTS))
    batches = drawn(examples, maker)
    found = taken(learner, batches)
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.norm == pytest.approx(expected.norm, rel=1e-4)
    assert learner.counters.step == 1 and learner.counters.tokens == examples.lengths().sum()
    assert maker.micro_batch_tokens <= Scarce.room and "Out of GPU memory" in capsys.readouterr().err
    assert learner.largest_computed == 0, "the optimizer takes memory only now"
    calls = Scarce.calls
    step(learner, batches)
    assert Scarce.calls - calls == len(batches.micro_batches()), "the smaller size stays"
    assert 0 < learner.largest_computed <= Scarce.room
    Scarce.room = int(examples.lengths().max()) - 1
    with pytest.raises(PretrainError, match="too small for .* tokens at once"):
        step(learner, batches)


class ShortOfMemory:
    """A function that finds no memory at some of its calls, counted from 1."""

    def __init__(self, function, at):
        self.function, self.at, self.calls = function, at, 0

    def __call__(self, *given, **named):
        self.calls += 1
        if self.calls in self.at:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
        return self.function(*given, **named)


def with_depths(model, kind):
    """A learner whose optimizer has a group of parameters for each layer."""
    learner = make_learner(model, optimizer=kind)
    learner.optimizer = Optimizer(model, kind, 1e-2, 0.1, rates=DepthRates(2, decay=0.5))
    learner.optimizer.set_learning_rate(1e-2)
    return learner


def change(learner):
    torch.manual_seed(learner.counters.step)
    for parameter in learner.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    change_weights(learner, torch.zeros(()))
    learner.counters.step += 1


@pytest.mark.parametrize(("kind", "home", "name", "at"), [
    ("adamw", torch, "zeros_like", 1), ("adamw", torch, "zeros_like", 2), ("adamw", torch, "zeros_like", 61),
    ("muon", torch.linalg, "matrix_norm", 1), ("muon", torch.linalg, "matrix_norm", 6),
])  # fmt: skip
def test_an_optimizer_that_finds_no_memory_amid_its_step_does_the_same_step_afterwards(
    model, monkeypatch, kind, home, name, at
):
    plenty, scarce = (with_depths(copy.deepcopy(model), kind) for _ in range(2))
    for _ in range(3):
        change(plenty)
        with monkeypatch.context() as patch:
            patch.setattr(home, name, short := ShortOfMemory(getattr(home, name), {at}))
            change(scarce)
        # The averages of AdamW are made once.
        assert short.calls > at or (kind == "adamw" and scarce.counters.step > 1)
    for mine, other in zip(scarce.model.parameters(), plenty.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    state, expected = (learner.optimizer.state_tensors() for learner in (scarce, plenty))
    assert state.keys() == expected.keys() and all(torch.equal(state[key], expected[key]) for key in state)


@pytest.mark.parametrize(("kind", "home", "name", "remedy"), [
    ("adamw", torch, "zeros_like", "a smaller model$"),
    ("muon", torch.linalg, "matrix_norm", "a smaller model or --optimizer adamw$"),
])  # fmt: skip
def test_an_optimizer_without_memory_ends_the_run_with_a_sentence(model, monkeypatch, kind, home, name, remedy):
    learner = with_depths(model, kind)
    monkeypatch.setattr(home, name, ShortOfMemory(getattr(home, name), range(1, 99)))
    with pytest.raises(PretrainError, match=f"too small for the optimizer.*{remedy}"):
        change(learner)


def test_micro_batches_that_were_halved_stay_so_where_the_run_goes_on(prepared, model, tmp_path):
    class Scarce(PretrainingObjective):
        """An objective on a device that has room for 300 tokens."""

        refused = 0

        def loss_sums(self, model, batch):
            if batch.num_tokens > 300:
                Scarce.refused += 1
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().loss_sums(model, batch)

    def trained(budget):
        run = make_run(prepared, model, tmp_path, budget, Scarce(PARTS))
        batches = drawn(*examples_and_maker(prepared))
        train(run, batches, evaluate=None)
        return run.counters.step, batches.maker.micro_batch_tokens

    first = trained("1steps")
    assert first[0] == 1 and first[1] <= 300
    refused, Scarce.refused = Scarce.refused, 0
    assert trained("2steps") == (2, first[1])
    assert refused > 0 == Scarce.refused


def test_results_that_are_read_a_step_later_are_the_same(prepared, model, tmp_path):
    """As on a GPU, whose work the host does not wait for; a checkpoint and a spike fall in between."""

    def rows(steps_behind):
        (folder := tmp_path / str(steps_behind)).mkdir()
        twin = copy.deepcopy(model)
        run = make_run(prepared, twin, folder, "9steps", evaluations=2, checkpoint_every="2steps")
        run.learner.steps_behind = steps_behind
        twin.nsp_head.bias.register_hook(lambda gradient: gradient * (math.nan if run.counters.step == 4 else 1.0))
        train(run, drawn(*examples_and_maker(prepared)), lambda model: {"loss": 1.0})
        assert run.counters.skipped == 1
        written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept = [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in written]
        state = read_state(run.checkpoints.newest_intact(), ())["counters"]
        clock = {"seconds": 0, "saving_seconds": 0}
        return kept, state | clock, [p.detach().clone() for p in twin.parameters()]

    (kept, state, weights), (later_kept, later_state, later_weights) = rows(0), rows(1)
    assert len(kept) > 9 and later_kept == kept and later_state == state
    assert all(map(torch.equal, weights, later_weights))


def test_after_an_evaluation_without_a_number_the_next_one_is_the_best(prepared, model, tmp_path):
    run = make_run(prepared, model, tmp_path, "30steps")
    for number, loss in enumerate((math.nan, 2.0, math.nan, 1.0, 1.5), 1):
        run.counters.step = number
        record_evaluation(run, {"loss": loss})
    assert run.counters.best == [1.0] and run.counters.best_step == 4 and run.counters.evaluations_since_best == 1


def test_in_a_time_budget_the_same_weights_are_never_evaluated_twice(prepared, model, tmp_path, monkeypatch):
    """Each evaluation takes so long that by its end another one is due, also where the run was stopped in between."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock.now))
    evaluated = []

    def evaluate(model):
        evaluated.append(float(sum(p.detach().double().abs().sum() for p in model.parameters())))
        clock.now += 3
        if len(evaluated) == 2:
            run.interruption.requested = "SIGTERM"
        return {"loss": 1.0}

    class OneSecondEach(SameAgain):
        def batches(self, batch_size, start):
            for batch in super().batches(batch_size, start):
                clock.now += 1
                yield batch

    examples, maker = examples_and_maker(prepared)
    stream = OneSecondEach(examples[:2])
    run = make_run(prepared, model, tmp_path, "20s", evaluations=20)
    with pytest.raises(Interrupted):
        train(run, Batches(stream, maker, 2, Position(), World()), evaluate)
    assert run.counters.step == 2
    run = make_run(prepared, model, tmp_path, "20s", evaluations=20)
    assert run.evaluations_due() > run.counters.evaluations
    train(run, Batches(stream, maker, 2, Position(), World()), evaluate)
    assert run.counters.step == len(evaluated) == len(set(evaluated)) == 5


def test_a_process_that_is_to_stop_waits_for_the_checkpoint_of_the_main_one(prepared, model, tmp_path):
    """A launcher ends all processes when the first of them has ended."""
    store = torch.distributed.HashStore()
    main, other = (
        make_run(prepared, model, tmp_path, "5steps", counters=Counters(step=3), world=World(rank, 2, store))
        for rank in (0, 1)
    )
    checkpoint, saved = main.checkpoints.path(3), []

    def stop(run):
        run.is_to_stop = True
        run.save(Position())
        with pytest.raises(Interrupted, match=str(checkpoint)):
            stop_if_asked(run)
        saved.append(checkpoint.exists())

    waiting = threading.Thread(target=stop, args=[other], daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and not saved
    stop(main)
    waiting.join(10)
    assert saved == [True, True]


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(prepared, model):
    examples, maker = examples_and_maker(prepared)
    learner = make_learner(model)
    counters = learner.counters
    with torch.no_grad():
        model.nsp_head.bias[0] = float("inf")
    before = copy.deepcopy(model.state_dict())
    taken(learner, drawn(examples, maker))
    assert counters.skipped == counters.skipped_in_a_row == counters.step == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        model.nsp_head.bias[0] = 0
    taken(learner, drawn(examples, maker))
    assert counters.skipped == 1 and counters.skipped_in_a_row == 0


def test_ten_such_steps_in_a_row_end_the_run_and_name_the_checkpoint(prepared, model, tmp_path):
    run = make_run(prepared, model, tmp_path, "30steps")
    run.save(Position())
    with torch.no_grad():
        model.mlm_head.bias[0] = float("nan")
    with pytest.raises(PretrainError, match=f"10 steps in a row.*{run.checkpoints.path(0)}"):
        train(run, drawn(*examples_and_maker(prepared)), evaluate=None)
    assert run.counters.step == run.counters.skipped == 10


@pytest.mark.parametrize("largest", [0.01, 0.1])
def test_the_gradient_is_clipped_to_what_is_asked_for(prepared, model, largest):
    examples, maker = examples_and_maker(prepared)
    learner = make_learner(model, clip_norm=largest)
    assert step(learner, drawn(examples, maker)).norm > 0.2
    # A tenth of the gradient is in the average of AdamW after one step.
    averages = [value for name, value in learner.optimizer.state_tensors().items() if name.startswith("exp_avg/")]
    assert 10 * torch.stack([value.norm() for value in averages]).norm() == pytest.approx(largest, rel=1e-3)


def test_each_step_is_drawn_with_its_number_and_progress(prepared, model, tmp_path):
    seen = []

    class Watched(BatchMaker):
        def begin(self, step, progress):
            seen.append((step, progress))

    examples, _ = examples_and_maker(prepared)
    maker = Watched(prepared.train, prepared.tokenizer, "token", 10**9)
    run = make_run(prepared, model, tmp_path, "10steps", schedule="warmup-stable-decay", warmup=0.0)
    train(run, Batches(SameAgain(examples[:2]), maker, 2, Position(), World()), lambda model: {"loss": 1.0})
    assert [step for step, _ in seen] == list(range(10))
    # Nothing changes on the plateau, and all of it in the last fifth.
    assert [progress for _, progress in seen] == pytest.approx([0.0] * 9 + [0.5])


def test_each_micro_batch_of_each_process_has_dropout_of_its_own(prepared):
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(prepared, dropout=0.3))
    examples, maker = examples_and_maker(prepared)
    batch = maker.packed(examples)

    def loss_of(rank, number):
        learner, losses = make_learner(copy.deepcopy(model)), {}
        learner.world = SimpleNamespace(rank=rank, size=1)
        backward(learner, batch, number, learner.counts(batch), losses)
        return float(losses["mlm"])

    assert loss_of(0, 0) == loss_of(0, 0)
    assert len({loss_of(0, 0), loss_of(0, 1), loss_of(1, 0)}) == 3


def test_the_steps_since_an_overflow_go_into_the_checkpoint(prepared, model, tmp_path):
    run = make_run(prepared, model, tmp_path, "9steps", precision="fp16")
    run.learner.loss_scale.steps_since_overflow.fill_(1_234)
    run.save(Position())
    again = make_run(prepared, model, tmp_path, "9steps", precision="fp16")
    assert again.learner.loss_scale.state() == run.learner.loss_scale.state() == (2.0**16, 1_234)


@pytest.mark.parametrize("losses", [(1.0, 1.0, math.nan, math.nan), (math.nan, math.nan, math.nan, math.nan)])
def test_an_equal_evaluation_is_no_better_one(prepared, model, tmp_path, losses):
    run = make_run(prepared, model, tmp_path, "30steps")
    run.patience = 3
    for number, loss in enumerate(losses, 1):
        assert not run.has_stalled()
        run.counters.step = number
        record_evaluation(run, {"loss": loss})
    assert run.counters.best_step == 1 and run.counters.evaluations_since_best == 3 and run.has_stalled()
