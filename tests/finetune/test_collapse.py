import json
import shutil
import signal
import warnings

import numpy as np
import pytest
from sklearn.metrics import log_loss

from finetune import collapse as collapses
from finetune import training
from finetune.collapse import collapse_of, collapse_of_labels
from finetune.questions.contexts import encode_questions
from finetune.rows import Example
from finetune.run import main
from finetune.settings import FinetuneError
from finetune.tasks.question_answering import QuestionAnswering
from finetune.tasks.regression import Regression
from pretrain.engine import loop


def answers(gold, right, num_labels):
    """Probabilities [n, C] that give the gold class of each text `right` and the others the rest."""
    found = np.full((len(gold), num_labels), (1 - right) / (num_labels - 1), dtype=np.float32)
    found[np.arange(len(gold)), gold] = right
    return found


def frequencies(gold, num_labels):
    """What one answers who reads no text: the share of each class."""
    return np.tile(np.bincount(gold, minlength=num_labels) / len(gold), (len(gold), 1)).astype(np.float32)


GOLD = np.array([0] * 60 + [1] * 30 + [2] * 10)


def test_answers_by_the_frequencies_of_the_labels_are_nothing_learned():
    found = collapse_of(GOLD, frequencies(GOLD, 3), None, 1e-3)
    assert found.given == "one class for every text" and found.learning_rate == 1e-3
    assert found.loss == pytest.approx(found.unread) == pytest.approx(log_loss(GOLD, frequencies(GOLD, 3)))
    assert "learned nothing at 0.001" in str(found) and "one class" in str(found)


def test_worse_answers_than_that_are_nothing_learned_and_better_ones_are_something():
    assert collapse_of(GOLD, answers(GOLD, 0.2, 3), None, 1e-3).loss == pytest.approx(np.log(5))
    assert collapse_of(GOLD, answers(GOLD, 0.9, 3), None, 1e-3) is None


def test_a_class_that_is_never_answered_is_no_collapse_where_the_texts_were_told_apart():
    gold = np.array([0] * 90 + [1] * 10)
    probabilities = np.where(gold[:, None] == 1, [[0.6, 0.4]], [[0.97, 0.03]]).astype(np.float32)
    assert set(probabilities.argmax(1)) == {0}
    assert collapse_of(gold, probabilities, None, 1e-3) is None


def test_one_class_for_all_is_nothing_learned_where_the_loss_is_hardly_better_than_without_reading():
    gold = np.array([0, 1] * 50)
    given = np.where(gold[:, None] == 1, [[0.53, 0.47]], [[0.6, 0.4]]).astype(np.float32)
    assert "one class" in collapse_of(gold, given, None, 1e-3).given
    given[1] = [0.47, 0.53]
    assert collapse_of(gold, given, None, 1e-3) is None


def test_with_weights_of_classes_the_entropy_is_that_of_the_weighted_labels():
    weights = (len(GOLD) / (3 * np.bincount(GOLD))).astype(np.float32)
    given = frequencies(GOLD, 3)
    found = collapse_of(GOLD, given, weights, 1e-3)
    assert found.unread == pytest.approx(np.log(3), rel=1e-5)
    assert found.loss == pytest.approx(log_loss(GOLD, given, sample_weight=weights[GOLD]), rel=1e-5)


def test_labels_by_their_frequencies_are_nothing_learned():
    gold = (np.random.default_rng(1).random((200, 3)) < [0.5, 0.1, 0.0]).astype(np.float32)
    even = np.tile(gold.mean(0, dtype=np.float32), (200, 1))
    found = collapse_of_labels(gold, even, 1e-3)
    of_each = [log_loss(gold[:, label], even[:, label], labels=[0, 1]) for label in range(3)]
    assert found.loss == pytest.approx(found.unread, rel=1e-5) == pytest.approx(np.mean(of_each), rel=1e-5)
    assert str(found).endswith("without reading them")
    assert collapse_of_labels(gold, 0.9 * even + 0.1 * gold, 1e-3) is None


def test_the_mean_of_the_numbers_is_nothing_learned_in_whatever_unit(small_tokenizer):
    numbers = 700 + 90 * np.random.default_rng(2).normal(size=50)
    rows = [Example("x:1", "the heart", label=number) for number in numbers]
    task = Regression().fitted_to(rows)
    encoded = task.encode(rows, small_tokenizer, 16, "head")
    found = task.collapse(encoded, np.full((50, 1), numbers.mean()), None, 1e-3)
    assert (found.loss, found.unread) == pytest.approx((1, 1)), "of numbers with a standard deviation of 1"
    assert task.collapse(encoded, 0.9 * numbers.mean() + 0.1 * numbers[:, None], None, 1e-3) is None


@pytest.fixture
def questions(small_tokenizer):
    """Two questions in one window each, one of them without an answer, and one in several windows."""
    short, long = "the heart rate of the patients", "the heart " * 12 + "rate"
    rows = [("heart", short, ((4, 14),)), ("rate", short, ()), ("rate", long, ((len(long) - 4, len(long)),))]
    return encode_questions([Example("x:1", *row) for row in rows], small_tokenizer, 16)


def span_loss(questions, logits):
    """Mean cross entropy of start and end in nats, window by window, those of a text counted 1 together."""
    total = 0.0
    for text, begin, end in zip(questions.text, questions.bounds, questions.bounds[1:], strict=False):
        share = 1 / (questions.text == text).sum()
        for column in range(2):
            given = np.exp(logits[begin:end, column].astype(float))
            total -= share * np.log(given[questions.targets[begin:end, column].argmax()] / given.sum())
    return total / (2 * questions.num_texts)


def test_tokens_that_are_all_alike_are_no_answers_learned(questions):
    windows = [questions.targets[begin] for begin in questions.bounds[:-1]]
    share = sum(float(each.sum()) for each in windows) / 2 / questions.num_texts
    assert 1 / 3 < share < 1
    logits = np.zeros((len(questions.targets), 2), np.float32)
    for begin, end in zip(questions.bounds, questions.bounds[1:], strict=False):
        logits[begin] = np.log(share * (end - begin - 1) / (1 - share))
    found = QuestionAnswering(0.0).collapse(questions, logits, None, 1e-3)
    assert found.loss == pytest.approx(found.unread, rel=1e-5) == pytest.approx(span_loss(questions, logits), rel=1e-5)
    right = logits + 2 * (questions.targets > 0)
    assert QuestionAnswering(0.0).collapse(questions, right, None, 1e-3) is None
    wrong = logits - 2 * (questions.targets > 0)
    found = QuestionAnswering(0.0).collapse(questions, wrong, None, 1e-3)
    assert found.loss == pytest.approx(span_loss(questions, wrong), rel=1e-5) and found.loss > found.unread


def test_that_no_window_holds_an_answer_can_be_learned(small_tokenizer):
    long = "the heart " * 12 + "rate"
    questions = encode_questions([Example("x:1", "rate", text, ()) for text in ("the rate", long)], small_tokenizer, 16)
    assert len(questions.bounds) > 4
    logits = 9 * (questions.targets > 0).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert QuestionAnswering(0.0).collapse(questions, logits, None, 1e-3) is None


# At this rate each of three seeds answers with one class after 60 steps; at 0.3 of it each learns.
WILD = 0.1


@pytest.fixture(scope="module")
def given(encoder, make_rows, tmp_path_factory):
    """(out, options) -> the arguments of a run that learns nothing at its learning rate."""
    train = tmp_path_factory.mktemp("texts") / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in make_rows(96)))
    fixed = {"model": encoder, "train": train, "budget": "60steps", "batch-size": 8, "evaluations": 1}
    fixed |= {"learning-rate": WILD, "precision": "fp32", "device": "cpu"}
    return lambda out, **options: [f"--{name}={value}" for name, value in (fixed | {"out": out} | options).items()]


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def weights(seed_folder):
    return (seed_folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def gentle(given, tmp_path_factory):
    """The same run at the rate of the restart, from the beginning."""
    out = tmp_path_factory.mktemp("gentle") / "out"
    assert main(given(out, **{"learning-rate": WILD * collapses.GENTLER})) == 0
    assert results_of(out)["restarts"] == 0
    return out


def test_a_seed_that_learned_nothing_begins_again_as_if_it_had_begun_gently(given, gentle, tmp_path, capsys):
    assert main(given(tmp_path / "run")) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "learned nothing" in line]
    assert said[0].startswith("Seed 1 learned nothing at 0.1:")
    assert said[0].endswith("It begins again at learning rate 0.03.")
    assert said[1:] == ["The model learned nothing and began again at a lower rate once."]
    found = results_of(tmp_path / "run" / "seed-1")
    assert [restart["learning_rate"] for restart in found["restarts"]] == [WILD]
    assert found["learning_rate"] == 0.03 and not found["learned_nothing"]
    assert weights(tmp_path / "run" / "seed-1") == weights(gentle / "seed-1")
    assert found["seconds"] > found["restarts"][0]["seconds"] > 0
    whole = results_of(tmp_path / "run")
    assert whole["restarts"] == 1 and whole["learning_rate"] == 0.03 and whole["seconds"] == found["seconds"]
    inside = {path.name for path in (tmp_path / "run" / "seed-1").iterdir()}
    assert inside == {"model", "results.json", "metrics.jsonl", "probabilities.npz"}
    assert "| learning_rate | 0.03 |" in (tmp_path / "run" / "final" / "README.md").read_text()


@pytest.mark.parametrize("when", ["while it trains again", "before it trains again"])
def test_a_restart_that_is_interrupted_goes_on_at_the_lower_rate(given, gentle, tmp_path, monkeypatch, when):
    out, step = tmp_path / "run", loop.step

    def interrupted(learner, batches):
        outcome = step(learner, batches)
        has_restarted = (out / "seed-1" / "restarts.json").exists()
        if has_restarted and learner.counters.step == (7 if when.startswith("while") else 1):
            signal.raise_signal(signal.SIGTERM)
        return outcome

    monkeypatch.setattr(loop, "step", interrupted)
    assert main(given(out)) == 75
    monkeypatch.setattr(loop, "step", step)
    if when.startswith("before"):
        shutil.rmtree(out / "seed-1" / "checkpoints")
    assert main(given(out)) == 0
    assert weights(out / "seed-1") == weights(gentle / "seed-1")
    assert results_of(out)["restarts"] == 1


@pytest.mark.parametrize("when", ["add", "remove_folder"])
def test_a_restart_that_is_killed_as_it_is_written_down_loses_no_training(given, gentle, tmp_path, monkeypatch, when):
    out, step, steps = tmp_path / "run", loop.step, []

    def killed(*facts):
        raise KeyboardInterrupt

    with monkeypatch.context() as at_the_end:
        at_the_end.setattr(collapses.Restarts if when == "add" else training, when, killed)
        assert main(given(out)) == 130
    monkeypatch.setattr(loop, "step", lambda learner, batches: steps.append(1) or step(learner, batches))
    assert main(given(out)) == 0 and len(steps) == 60
    assert weights(out / "seed-1") == weights(gentle / "seed-1") and results_of(out)["restarts"] == 1


def test_a_seed_that_never_learns_ends_after_two_restarts_and_another_after_none(
    given, write_rows, make_rows, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("finetune.training.FEWEST_STEPS", 10)
    alike = [row | {"text": "mask 1 2 3"} for row in make_rows(96)]
    # The validation texts, of two classes of three, are not asked whether something was learned.
    files = {"train": write_rows(alike), "validation": write_rows(alike[::3] + alike[1::3], "validation.jsonl")}
    assert main(given(tmp_path / "run", budget="12steps", seeds=2, **files)) == 0
    found = results_of(tmp_path / "run")
    assert found["restarts"] == collapses.MOST_RESTARTS == 2 and found["learned_nothing"] == [1, 2]
    assert found["validation"]["mcc"]["mean"] == 0
    before = results_of(tmp_path / "run" / "seed-1")["restarts"]
    assert [restart["unread"] for restart in before] == pytest.approx([np.log(3)] * 2)
    assert "Its results are those of a guess." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--folds=2", "The model{} 4 times, without success for 2 of its folds."),
        ("--learning-curve", "With 96 rows the model{} 2 times, without success for 1 of its seeds."),
    ],
)
def test_what_learned_nothing_is_said_below_the_table_of_several(
    option, sentence, given, write_rows, make_rows, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("finetune.training.FEWEST_STEPS", 10)
    alike = write_rows([row | {"text": f"mask {n}"} for n, row in enumerate(make_rows(192))])
    held_out = {} if "folds" in option else {"validation": alike}
    assert main([*given(tmp_path / "run", budget="12steps", train=alike, **held_out), option]) == 0
    said = sentence.format(" learned nothing and began again at a lower rate")
    assert said in capsys.readouterr().out.splitlines()
    found = results_of(tmp_path / "run")
    assert [part["learned_nothing"] for part in found.get("points", [found])] == (
        [[1, 2]] if "folds" in option else [[1], [1]]
    )


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ([], 2),
        ([("nothing", 2)], 0),
        ([("nothing", 2), ("nothing", 0)], 0),
        ([("something", 2)], 2),
        ([("something", 0), ("nothing", 2)], 2),
        # The first of a search is never restarted.
        ([("nothing", 0)], 2),
    ],
)
def test_seeds_are_restarted_unless_those_before_learned_nothing_at_any_rate(before, left):
    found = [{"learned_nothing": what == "nothing", "restarts": [{}] * count} for what, count in before]
    assert collapses.restarts_left(found) == left


def test_each_restart_is_gentler_than_the_one_before(tmp_path):
    restarts, rates = collapses.Restarts(tmp_path / "restarts.json", "these texts"), []
    for _ in range(3):
        rates.append(restarts.learning_rate(WILD))
        restarts.add(collapse_of(GOLD, frequencies(GOLD, 3), None, rates[-1]), seconds=2.0)
    assert rates == [0.1, 0.03, 0.009] and restarts.seconds() == 6
    # A rate below that of the settings' range would end the run.
    assert restarts.learning_rate(2e-9) == 1e-9


def test_restarts_of_other_texts_are_refused(tmp_path):
    restarts = collapses.Restarts(tmp_path / "restarts.json", "these texts")
    restarts.add(collapse_of(GOLD, frequencies(GOLD, 3), None, WILD), seconds=2.0)
    assert restarts.learning_rate(WILD) == 0.03 and collapses.Restarts(restarts.path, "these texts").before()
    with pytest.raises(FinetuneError, match="restarts.json is damaged, or of other texts"):
        collapses.Restarts(restarts.path, "other texts").before()


def test_of_a_few_steps_nothing_is_expected(given, tmp_path):
    assert main(given(tmp_path / "run", budget="3steps")) == 0
    assert results_of(tmp_path / "run")["restarts"] == 0
