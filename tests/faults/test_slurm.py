"""The Slurm script of docs/many_gpus.md as it is printed, with stand-ins for srun, scontrol and the GPUs' model."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from drive import finish
from lives import ROOT, Life, free_port
from runs import Job, Seen, differences

TASKS = 2
SCRIPT = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "docs" / "many_gpus.md").read_text(), re.DOTALL)[1]
# As srun: each task knows its number, and the highest exit code of all (128 + signal for a killed one) is its own.
SRUN = """
while [ "${1#--}" != "$1" ]; do shift; done
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks="$tasks $!"
done
highest=0
for task in $tasks; do
    wait "$task"
    code=$?
    if [ $code -gt $highest ]; then highest=$code; fi
done
exit $highest
"""
SCONTROL = """
if [ "$1" = show ]; then echo localhost; else echo "$@" >> requeued; fi
"""
# The last of each option counts.
PYTHON = """
exec {python} "$@" {small}
"""


@pytest.fixture
def submit(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Starts the batch script in a folder of its own."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    small = " ".join(job.given(Path("runs/notes")))
    programs = {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON.format(python=sys.executable, small=small)}
    for name, program in programs.items():
        (stand_ins / name).write_text(f"#!/bin/bash{program}")
        (stand_ins / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(SCRIPT)
    port = free_port()
    known = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS": str(TASKS), "SLURM_CPUS_PER_TASK": "1"}
    known |= {"SLURM_JOB_ID": f"7{port % 10_000:04}", "PATH": f"{stand_ins}{os.pathsep}{os.environ['PATH']}"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)

    return lambda: Life(["bash", str(tmp_path / "job.sh")], tmp_path / "log", folder=tmp_path)


def requeued(folder: Path) -> list[str]:
    file = folder / "requeued"
    return file.read_text().splitlines() if file.exists() else []


def test_the_script_asks_for_the_signal_where_the_test_sends_it():
    """Without B: before it, `--signal` reaches the processes of srun and not the batch shell."""
    assert "--signal=TERM@" in SCRIPT and "--requeue" in SCRIPT


@pytest.mark.slow
def test_a_job_that_is_told_to_stop_is_requeued_and_can_go_on(submit, job, finished_by_two, tmp_path):
    out = tmp_path / "runs" / "notes"
    seen = Seen(out, job)
    with submit() as life:
        assert life.wait_until(lambda: seen.last()[0] >= 4)
        for task in range(TASKS):
            life.signal_rank(task, signal.SIGTERM)
        assert life.wait(30) == 75, life.err
        assert "Traceback" not in life.err and seen.newest() == seen.last()[0] < job.steps
    assert requeued(tmp_path) == [f"requeue {os.environ['SLURM_JOB_ID']}"]
    # What was requeued begins with the same command: `exit 0` below is how it ends.
    finish(job.changed(processes=TASKS), out, Job.fork)
    assert not differences(out, finished_by_two, same_checkpoints=False)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("exit 75", 75), ("exit 0", 0), ("exit 2", 2), ("kill -KILL $$", 128 + signal.SIGKILL),
        # A mistake that only one of them has seen.
        ("exit $((75 + SLURM_PROCID))", 76),
    ],
)  # fmt: skip
def test_only_a_job_that_was_told_to_stop_is_requeued(ends, expected, submit, tmp_path):
    """One that was killed for want of memory, say, would be killed again."""
    (tmp_path / "bin" / "python").write_text(f"#!/bin/bash\n{ends}\n")
    with submit() as life:
        assert life.wait() == expected, life.err
    assert len(requeued(tmp_path)) == (expected == 75)
