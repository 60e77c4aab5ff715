import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.examples.packing import ShardExamples
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.dry_run import SEARCHED, STEPS, Rehearsal, examples_at_once
from pretrain.engine.batches import Position
from pretrain.engine.plan import free_memory, memory_warning, room_in_groups

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stream(prepared):
    return ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1))


def same(one, other):
    return all((vars(one)[name] == vars(other)[name]).all() for name in vars(one))


def test_the_steps_that_are_timed_are_the_first_of_the_run_and_the_last_is_the_longest(stream):
    size = 8
    run, rehearsal = (s.batches(size, Position()) for s in (stream, Rehearsal(stream)))
    for _ in range(STEPS):
        (expected, position), (found, place) = next(run), next(rehearsal)
        assert same(found, expected) and place == position
    later = [length for _ in range(SEARCHED) for length in next(run)[0].lengths().tolist()]
    longest, _ = next(rehearsal)
    assert sorted(longest.lengths().tolist()) == sorted(later)[-size:]


@given(st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_the_evaluation_takes_the_examples_that_make_one_full_micro_batch(stream, prepared, tokens):
    examples, _ = next(stream.batches(40, Position()))
    maker = BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "token", tokens)
    count = examples_at_once(examples, tokens)
    batches = list(maker.micro_batches(examples[:count]))
    assert len(batches) == 1
    assert batches[0].num_tokens <= tokens or count == 1
    assert count == len(examples) or examples[: count + 1].lengths().sum() > tokens


def test_one_example_is_evaluated_where_none_fits(stream):
    examples, _ = next(stream.batches(5, Position()))
    assert examples_at_once(examples, 1) == 1


def test_too_much_memory_is_warned_of_with_the_remedy():
    assert memory_warning(2e9, 2e9, 8192) is None
    assert memory_warning(3.14e9, 2.5e9, 8192) == (
        "Warning: the run needs about 3.1 GB of memory, and 2.5 GB are free: lower --micro-batch-tokens (now 8,192), "
        "or take a smaller model."
    )


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs the files of Linux")
def test_free_memory_counts_what_the_process_has_and_is_no_more_than_there_is(monkeypatch):
    page = os.sysconf("SC_PAGE_SIZE")
    unused, total = (os.sysconf(name) * page for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    before = free_memory("cpu")
    assert 0 < before <= total
    with monkeypatch.context() as patch:
        patch.setattr("pretrain.engine.plan.room_in_groups", list)
        assert 0.9 * unused < free_memory("cpu") <= total
        patch.setattr("pretrain.engine.plan.room_in_groups", lambda: [1_000, 10**15])
        assert 0 < free_memory("cpu") < before
    held = bytearray(b"x") * 600_000_000
    # Memory that the process takes is still memory that it may have. Other processes come and go meanwhile.
    assert abs(free_memory("cpu") - before) < 0.7 * len(held)


@pytest.mark.parametrize(("own", "base", "limits", "used"), [
    ("0::/job/step", "sys/fs/cgroup", "memory.max", "anon"),
    ("0::/elsewhere\n4:cpu,memory:/job/step", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss"),
])  # fmt: skip
def test_limits_of_containers_and_batch_systems_are_known(tmp_path, own, base, limits, used):
    (tmp_path / "proc/self").mkdir(parents=True)
    assert room_in_groups(tmp_path) == []
    (tmp_path / "proc/self/cgroup").write_text(f"9:name=systemd:/x\n8:pids:/y\n{own}\n")
    assert room_in_groups(tmp_path) == []
    for place, limit, taken in (("job/step", "max", 5), ("job", 8_000_000_000, 3_000_000_000), (".", 900, 1_000)):
        group = tmp_path / base / place
        group.mkdir(parents=True, exist_ok=True)
        (group / limits).write_text(f"{limit}\n")
        (group / "memory.stat").write_text(f"file 77\n{used} {taken}\nother_{used} 1\n")
    assert room_in_groups(tmp_path) == [5_000_000_000, 0]


def child(prepared, out, *options):
    """What a run prints, and its peak of memory in bytes."""
    given = ["--preset=micro", "--sequence-length=48", "--batch-size=64", "--evaluations=1", "--device=cpu"]
    command = [sys.executable, "-m", "pretrain.run", f"--prepared={prepared.folder}", f"--out={out}", *given, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return printed, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
def test_the_memory_of_the_plan_is_about_that_of_the_run(prepared, tmp_path):
    printed, _ = child(prepared, tmp_path / "out", "--budget=8steps", "--dry-run")
    planned = float(re.search(r"memory +about ([\d.]+) GB", printed)[1])
    assert re.search(r"on a GPU +16 GB: 65,536, .*computed, not measured", printed)
    assert "1 MB of clinical-trial articles (0.2 M tokens, 6.4 M read), 4x128: MLM loss 4." in printed
    _, peak = child(prepared, tmp_path / "out", "--budget=8steps")
    assert planned == pytest.approx(peak / 1e9, rel=0.3, abs=0.05)
