"""A write that fails, at any byte of a checkpoint or of final/: one sentence, nothing lost, and the run goes on."""

import json
import re
import resource
import shutil
import subprocess
import sys

import pytest
from drive import finish
from lives import HERE, ROOT, one_thread
from runs import Job, Seen, differences

from pretrain.engine.checkpoint import damage_of

SENTENCE = re.compile(
    r"error: the disk of [^:\n]+ is full: [\d,]{7,} bytes are needed and [\d,]+ are free[^;\n]*; what was saved "
    r"before is intact: make room and give the same command again to go on\n"
)


def test_a_write_that_fails_at_any_byte_of_a_checkpoint_loses_nothing(job, finished, tmp_path):
    """A limit on the size of files takes effect in the middle of a run, of one that goes on."""
    out = tmp_path / "out"
    seen = Seen(out, job)
    newest = max(finished.glob("checkpoints/*"))
    weights = (newest / "model.safetensors").stat().st_size
    optimizer = (newest / "training_state" / "optimizer.safetensors").stat().st_size
    assert weights < optimizer
    for number, limit in enumerate((weights // 3, optimizer - 1)):
        with job.fork(out, tmp_path / f"log-{number}") as life:
            before = seen.newest()
            assert life.wait_until(lambda before=before: seen.newest() > before)
            resource.prlimit(life.pid(), resource.RLIMIT_FSIZE, (limit, limit))
            assert life.wait(30) == 2
            assert SENTENCE.fullmatch(life.err), life.err
        checkpoints = sorted((out / "checkpoints").iterdir())
        assert checkpoints and all(damage_of(path) is None for path in checkpoints)
        assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]
    finish(job, out, Job.fork)
    assert not differences(out, finished)


@pytest.mark.slow
def test_a_disk_that_fills_up_loses_nothing(job, finished, tmp_path):
    """On small disks of their own: too small for the first checkpoint, full inside a later one, full inside final/."""
    if not shutil.which("unshare"):
        pytest.skip("small disks are made with unshare, which is not on this machine")
    (tmp_path / "disks").mkdir()
    command = ["unshare", "-rm", sys.executable, str(HERE / "small_disks.py"), str(tmp_path), *job.given(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=one_thread(), capture_output=True, text=True, timeout=180)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip(f"mounting a small disk is not permitted here ({done.stderr.strip()})")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [story["full_at"] for story in found] == ["the start", "a checkpoint", "final"]
    for story in found:
        assert story["codes"] == [2, 0], story
        assert SENTENCE.fullmatch(story["said"]), story["said"]
        assert story["hidden"] == [] and story["damage"] == []
    assert [story["checkpoints"] for story in found[:2]] == [[], ["step-00000003"]]
    assert "Resuming from" not in found[0]["then"]
    assert "checkpoints/step-00000003." in found[1]["then"]
    assert f"checkpoints/step-{job.steps:08d}." in found[2]["then"]
    for number in range(3):
        assert not differences(tmp_path / f"out-{number}", finished)
