"""A run that was killed, whenever and however, ends as if nothing had happened, bit for bit."""

import json
from functools import partial

import pytest
from drive import Kill, Moment, finish, killed_run, moments
from hooks import large_loss_scale
from runs import Job, differences


def check(kills: list[Kill], kinds: list[str]) -> None:
    """That every kill met the run, at the moment it was for."""
    assert [kill.moment.kind for kill in kills if kill.was_met and kill.found] == kinds


@pytest.mark.slow
def test_killed_at_four_moments(job, finished, tmp_path):
    out = tmp_path / "out"
    plan = [
        Moment("write", 3, 0.004),
        Moment("evaluation", 7, 0.0),
        Moment("row", 11, 0.0),
        Moment("final", job.steps, 0.002),
    ]
    kills = killed_run(job, out, plan, tmp_path / "log", Job.fork)
    check(kills, ["write", "evaluation", "row", "final"])
    # Steps that no checkpoint held were lost and done again, others were not.
    assert kills[0].went_on_from == "the beginning" and kills[3].went_on_from == f"step-{job.steps:08d}"
    assert differences(out, finished) == []


@pytest.mark.slow
def test_killed_in_fp16_among_overflows(job, tmp_path):
    job = job.changed("--precision=fp16", "--checkpoint-every=2steps")
    start = partial(Job.fork, before=large_loss_scale)
    whole, out = finish(job, tmp_path / "whole", start), tmp_path / "out"
    results = json.loads((whole / "results.json").read_text())
    assert 0 < results["overflowed_steps"] < job.steps and results["skipped_steps"] == 0
    kills = killed_run(job, out, [Moment("row", 3, 0.0), Moment("row", 9, 0.0)], tmp_path / "log", start)
    check(kills, ["row", "row"])
    assert differences(out, whole) == []


@pytest.mark.slow
def test_an_electra_is_killed_while_its_two_models_are_written(job, tmp_path):
    job = job.changed("--objective=electra")
    whole, out = finish(job, tmp_path / "whole", Job.fork), tmp_path / "out"
    plan = [Moment("write", 3, 0.004), Moment("row", 8, 0.0), Moment("final", job.steps, 0.002)]
    kills = killed_run(job, out, plan, tmp_path / "log", Job.fork)
    check(kills, ["write", "row", "final"])
    assert (out / "final" / "generator" / "model.safetensors").exists() and differences(out, whole) == []


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed(job, finished_by_two, tmp_path):
    out = tmp_path / "out"
    plan = [Moment("row", 5, 0.0, victim=1)]
    kills = killed_run(job.changed(processes=2), out, plan, tmp_path / "log", Job.fork)
    check(kills, ["row"])
    assert "another process of this run ended without a word" in (tmp_path / "log-0.err").read_text()
    assert differences(out, finished_by_two) == []


def test_a_fine_tuning_killed_in_its_second_seed(finetune_job, finetuned, tmp_path):
    out = tmp_path / "out"
    kills = killed_run(finetune_job, out, [Moment("write", 18, 0.002)], tmp_path / "log", Job.fork)
    check(kills, ["write"])
    assert kills[0].went_on_from.startswith("seed-2/")
    assert differences(out, finetuned) == []


def test_folders_that_differ_in_a_bit_are_told_apart(finished, tmp_path):
    """The comparison that all of this rests on: each kind of file counts, the clock does not."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    assert differences(finished, copy) == []
    state = max(copy.glob("checkpoints/*")) / "training_state"
    for path in (copy / "final" / "model.safetensors", state / "optimizer.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert differences(finished, copy) == [path.relative_to(copy).as_posix()]
        content[-1] ^= 1
        path.write_bytes(content)
    for path, change in ((state / "state.json", {"position": 0}), (copy / "results.json", {"steps": 0})):
        content = path.read_text()
        path.write_text(json.dumps(json.loads(content) | {"seconds": -1}))
        assert differences(finished, copy) == []
        path.write_text(json.dumps(json.loads(content) | change))
        assert differences(finished, copy) == [path.relative_to(copy).as_posix()]
        path.write_text(content)
    (copy / "checkpoints" / ".step-00000001.tmp").mkdir()
    assert differences(finished, copy) == ["only in one: checkpoints/.step-00000001.tmp"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_plan_of_many_kills_has_a_third_of_them_inside_writes(job, processes):
    for seed in range(20):
        plan = moments(25, seed, job.changed(processes=processes), 75, prepares=True)
        assert len(plan) == 25
        assert sum(moment.kind == "write" for moment in plan) >= 9, seed
        assert [moment.step for moment in plan] == sorted(moment.step for moment in plan)
        assert {moment.victim for moment in plan} <= {None, *range(processes if processes > 1 else 0)}
