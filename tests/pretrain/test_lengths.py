"""Several sequence lengths in one run: short examples first, one learning rate over all, exact where it goes on."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from data_prep.examples.packing import ShardExamples
from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings
from model import BertConfig, BertForPreTraining
from model.initialisation import POSITION_SCALE, sinusoids
from pretrain.batches import BatchMaker, ExampleStream, PositionShift, TrainingPlan
from pretrain.engine.batches import Position
from pretrain.engine.checkpoint import read_state
from pretrain.engine.distributed import World
from pretrain.objectives import make_objective
from pretrain.phases import make_phases
from pretrain.resolve import resolve
from pretrain.run import main
from pretrain.settings import PretrainSettings

SHORT, LONG, SEAM, STEPS = 24, 48, 12, 24
VOLATILE = ("seconds", "tokens_per_second")


def arguments(prepared, out, *more):
    given = {"prepared": prepared.folder, "out": out, "budget": f"{STEPS}steps", "preset": "tiny", "device": "cpu",
             "sequence-length": f"{SHORT},{LONG}", "length-shares": "0.5,0.5", "batch-size": "16,8", "log-every": 1,
             "evaluations": 4, "checkpoint-every": "3steps", "keep-checkpoints": 20}  # fmt: skip
    return [*(f"--{name}={value}" for name, value in given.items()), *more]


def rows(out):
    """metrics.jsonl without what the clock decides."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in found]


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("lengths") / "run"
    assert main(arguments(prepared, out)) == 0
    return out


def test_short_examples_come_first_and_long_ones_where_the_next_buffer_begins(finished, prepared):
    tokens = [row["tokens"] for row in rows(finished) if "learning_rate" in row]
    expected, total = [], 0
    # The corpus is one buffer of shards, so the next one is that of the next epoch.
    for length, size, start, steps in ((SHORT, 16, Position(), SEAM), (LONG, 8, Position(0, 1), STEPS - SEAM)):
        drawn = ExampleStream(ShardExamples.of(prepared, "train", length, seed=1)).batches(size, start)
        for _ in range(steps):
            lengths = next(drawn)[0].lengths()
            assert len(lengths) == size and lengths.max() <= length
            total += int(lengths.sum())
            expected.append(total)
        assert lengths.max() > length / 2
    assert tokens == expected


def test_one_learning_rate_curve_goes_over_both(finished):
    rates = [row["learning_rate"] for row in rows(finished) if "learning_rate" in row]
    peak, warmup = float(yaml.safe_load((finished / "settings.yaml").read_text())["learning_rate"]), 0.1 * STEPS
    expected = [min(0.01 + 0.99 * s / warmup, (STEPS - s) / (STEPS - warmup)) * peak for s in range(STEPS)]
    assert rates == pytest.approx(expected)


def test_each_part_is_evaluated_on_examples_of_its_length(finished):
    evaluations = {row["step"]: row["validation"] for row in rows(finished) if "validation" in row}
    assert list(evaluations) == [6, 12, 18, 24]
    text = {step: found["unigram_entropy"] for step, found in evaluations.items()}
    assert text[6] == text[12] != text[18] == text[24]
    states = {int(path.name[-8:]): read_state(path, ()) for path in finished.glob("checkpoints/*")}
    lengths = {step: state["sequence_length"] for step, state in states.items()}
    assert {step for step, length in lengths.items() if length == SHORT} == {3, 6, 9, 12}
    assert {step for step, length in lengths.items() if length == LONG} == {15, 18, 21, 24}
    # Losses of short examples are not compared with those of long ones.
    assert states[12]["counters"]["best"] and states[15]["counters"]["best"] is None


@pytest.mark.parametrize("step", [9, SEAM, 15])
def test_it_goes_on_to_the_bit_before_at_and_behind_the_seam(step, finished, prepared, stopped_at, capsys):
    out = stopped_at(finished, step)
    assert main(arguments(prepared, out)) == 0
    assert f"Resuming from {out}/checkpoints/step-{step:08d}." in capsys.readouterr().out
    before, after = (load_file(folder / "final" / "model.safetensors") for folder in (finished, out))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert rows(out) == rows(finished)


@pytest.fixture
def examples(prepared):
    return next(ExampleStream(ShardExamples.of(prepared, "train", SHORT, seed=1)).batches(500, Position()))[0]


def test_shifted_examples_begin_anywhere_they_fit_and_the_others_at_the_start(examples):
    first, last = PositionShift(LONG, 0.5).offsets(examples), LONG - examples.lengths()
    assert ((first >= 0) & (first <= last)).all()
    # A few of the shifted ones stay where they are.
    expected = 0.5 * (1 - (1 / (last + 1)).mean())
    assert (first > 0).mean() == pytest.approx(expected, abs=4 * (0.25 / len(examples)) ** 0.5)
    quarters = np.bincount((4 * (first - 1) // last)[first > 0], minlength=4)
    assert (abs(quarters / quarters.sum() - 0.25) < 0.1).all()
    assert (PositionShift(LONG, 0.0).offsets(examples) == 0).all() and (
        PositionShift(1, 1.0).offsets(examples) == 0
    ).all()
    # It stands where it stands, whatever it is computed with.
    assert (PositionShift(LONG, 0.5).offsets(examples[::3]) == first[::3]).all()


def test_a_shifted_example_has_the_same_tokens_and_targets(examples, prepared):
    makers = [
        BatchMaker(prepared.train, prepared.tokenizer, "token", 10**6, plan=TrainingPlan((0.15, 0.15), shift=shift))
        for shift in (None, PositionShift(LONG, 1.0))
    ]
    still, shifted = (maker.packed(examples) for maker in makers)
    for name in ("input_ids", "token_type_ids", "sequence_starts", "masked_positions", "masked_targets"):
        assert torch.equal(getattr(still, name), getattr(shifted, name))
    lengths = torch.diff(still.sequence_starts).long()
    by = torch.from_numpy(PositionShift(LONG, 1.0).offsets(examples)).repeat_interleave(lengths)
    assert by.max() > 0 and torch.equal(shifted.position_ids, still.position_ids + by)


@pytest.mark.parametrize(("share", "learned"), [("auto", True), ("0", False)])
def test_short_examples_learn_the_positions_of_long_ones(share, learned, prepared, tmp_path):
    """Weight decay alone would leave sinusoids of another size; the last step alone is of long examples."""
    out = tmp_path / "run"
    shares = f"--length-shares={(STEPS - 1) / STEPS},{1 / STEPS}"
    assert main(arguments(prepared, out, shares, f"--shifted-share={share}")) == 0
    model = BertForPreTraining.from_pretrained(out / "checkpoints" / f"step-{STEPS - 3:08d}")
    found = model.bert.embeddings.position.weight.detach()[SHORT:]
    fresh = sinusoids(LONG, found.shape[1])[SHORT:] * POSITION_SCALE
    size = (found * fresh).sum() / fresh.square().sum()
    assert ((found - size * fresh).norm() > 0.1 * found.norm()) == learned


@pytest.mark.parametrize(
    ("positions", "given", "share"),
    [(None, {}, 0.25), (SHORT, {}, 0.25), (LONG, {}, 0.0), (LONG, {"shifted_share": 0.5}, 0.5)],
)
def test_what_a_model_knows_needs_no_shift(positions, given, share):
    """Nor what a teacher says, who has learned from no shifted examples."""
    config = positions and BertConfig.from_preset("tiny", 100, max_position_embeddings=positions)
    lengths = ExampleSettings(sequence_length=(SHORT, LONG))
    settings = PretrainSettings(device="cpu", init_from="a-bert" if config else None, examples=lengths, **given)
    assert resolve(settings, config).shifted_share == share
    if config and not given:
        assert resolve(replace(settings, preset="auto", teacher="a-teacher"), config).shifted_share == 0.0


def test_held_out_examples_begin_at_the_first_position(prepared):
    lengths = ExampleSettings(sequence_length=(SHORT, LONG))
    given = PretrainSettings(
        prepared=str(prepared.folder), preset="tiny", device="cpu", shifted_share=1.0, examples=lengths
    )
    settings = resolve(given)
    for phase in make_phases(settings, prepared, make_objective(settings, prepared), World()):
        training, held_out = next(phase.stream.batches(50, Position()))[0], phase.evaluation.examples[:50]
        batches = phase.maker.packed(training), phase.evaluation.maker.packed(held_out)
        learned, read = (batch.position_ids[batch.sequence_starts[:-1].long()] for batch in batches)
        assert bool(learned.any()) == (phase.length == SHORT) and not read.any()


def test_a_run_of_an_older_version_goes_on_as_it_began(finished, prepared, stopped_at):
    """Its settings do not say where its examples begin: all at the first position."""
    out = stopped_at(finished, 9)
    kept = [line for line in (out / "settings.yaml").read_text().splitlines() if not line.startswith("shifted_share")]
    (out / "settings.yaml").write_text("\n".join(kept) + "\n")
    assert main(arguments(prepared, out)) == 0
    assert yaml.safe_load((out / "settings.yaml").read_text())["shifted_share"] == 0.0


@pytest.mark.parametrize(("prepared_at", "trained_at", "name"), [(16, 64, "mlm+nsp"), (64, 16, "mlm")])
def test_next_sentences_are_learned_where_the_length_of_the_run_has_pairs(prepared_at, trained_at, name, tmp_path):
    """Whatever the corpus was prepared with: documents of two sentences have a pair where both find room."""
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(("heart", "liver", "rate", "was", "low"), k=20)) for _ in range(160)]
    text = "\n\n".join("\n".join(sentences[n : n + 2]) for n in range(0, len(sentences), 2))
    (tmp_path / "two.txt").write_text(text)
    prep = PrepSettings(corpus=(str(tmp_path / "two.txt"),), workers=1)
    corpus = prepare(prep, ExampleSettings(sequence_length=prepared_at), tmp_path / "prepared")
    assert corpus.next_sentence == (prepared_at == 64)
    settings = PretrainSettings(prepared=str(corpus.folder), examples=ExampleSettings(sequence_length=trained_at))
    assert make_objective(settings, corpus).name == name


def test_the_model_reads_the_longest_and_its_folder_says_so(finished):
    assert BertForPreTraining.from_pretrained(finished / "final").config.max_position_embeddings == LONG
    assert "| sequence_length | 24, 48 |" in (finished / "final" / "README.md").read_text()
    assert yaml.safe_load((finished / "settings.yaml").read_text())["batch_size"] == [16, 8]


def test_three_lengths_change_where_their_shares_say():
    settings = PretrainSettings(examples=ExampleSettings(sequence_length=(16, 32, 48)), length_shares=(0.1, 0.2, 0.7))
    assert [end for end, _ in settings.phases] == [0.1, 0.3, 1.0]


def test_auto_chooses_steps_of_about_as_many_tokens(prepared, tmp_path):
    out = tmp_path / "run"
    given = [word for word in arguments(prepared, out, "--budget=4steps") if not word.startswith("--batch-size")]
    assert main(given) == 0
    settings = yaml.safe_load((out / "settings.yaml").read_text())
    sizes = settings["batch_size"]
    streams = [ExampleStream(ShardExamples.of(prepared, "train", length, seed=1)) for length in (SHORT, LONG)]
    tokens = [
        next(stream.batches(size, Position()))[0].lengths().sum() for stream, size in zip(streams, sizes, strict=True)
    ]
    assert sizes[0] > 1.5 * sizes[1] and tokens[0] == pytest.approx(tokens[1], rel=0.1)


def test_a_dry_run_plans_both(prepared, tmp_path, capsys):
    assert main(arguments(prepared, tmp_path / "run", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "about 24 of 16, then 8 examples" in said and "; at 48: " in said
    assert not (tmp_path / "run").exists()


def test_a_length_that_gets_no_step_is_warned_of(prepared, tmp_path, capsys):
    less = ("--budget=3steps", "--length-shares=0.9,0.1", "--evaluations=1")
    for more in ((), ("--dry-run",)):
        assert main(arguments(prepared, tmp_path / "run", *less, *more)) == 0
        assert "Warning: the budget has no step for examples of up to 48 tokens" in capsys.readouterr().out
    # Where the longer examples were trained on, an earlier phase that is over is none of that kind.
    for more in ((), ("--dry-run",)):
        out = tmp_path / f"longer{len(more)}"
        assert main(arguments(prepared, out, *less, "--length-shares=0.5,0.5", *more)) == 0
        assert main(arguments(prepared, out, *less, "--length-shares=0.5,0.5", "--budget=5steps")) == 0
        assert "Warning: the budget has no step" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--sequence-length=48,24", "does not rise"),
        ("--sequence-length=4,24", "--sequence-length 4 is too short"),
        ("--sequence-length=24,", "'' is not a whole number"),
        ("--sequence-length=16,24,48 --batch-size=8", "--length-shares has 2 numbers for 3 sequence lengths"),
        ("--length-shares=0.5,0.6", "add up to 1"),
        ("--length-shares=1,0", "more than 0"),
        ("--length-shares=nan,nan", "more than 0"),
        ("--length-shares=0.5", "--length-shares has 1 numbers for 2 sequence lengths"),
        ("--shifted-share=1.5", "--shifted-share 1.5 is out of range"),
        ("--sequence-length=48 --length-shares=1 --batch-size=8 --shifted-share=0.5", "is for several lengths"),
        ("--batch-size=8,8,8", "--batch-size has 3 numbers for 2 sequence lengths"),
        ("--batch-size=8,0", "--batch-size 0 is out of range: give 1 to"),
        ("--batch-size=99999999999999999999", "is out of range: give 1 to 16,777,216"),
        ("--threads=2147483648", "is out of range: give 1 to 4,096"),
        ("--budget=" + "9" * 400 + "steps", "is too much"),
        ("--sequence-length=48 --batch-size=8", "--length-shares has 2 numbers for 1 sequence lengths"),
    ],
)
def test_lengths_and_shares_that_do_not_fit_are_refused(given, words, prepared, tmp_path, capsys):
    assert main(arguments(prepared, tmp_path / "run", *given.split())) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_the_preparation_takes_one_length(tmp_path, corpus_file, capsys):
    from data_prep.run import main as prepare

    assert prepare(["--corpus", str(corpus_file), "--out", str(tmp_path / "p"), "--sequence-length=24,48"]) == 2
    assert "takes one length here" in capsys.readouterr().err
