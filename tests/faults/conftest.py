"""A small corpus, a small model, and jobs on them; runs are forked from a process that has everything imported."""

import sys
from pathlib import Path

import pytest

# Test files and forked processes import lives, runs and drive from here.
sys.path.insert(0, str(Path(__file__).parent))

from drive import finish
from runs import Job, finetuning, pretraining, write_corpus, write_rows


def pytest_collection_modifyitems(items):
    """Processes are found by what /proc says of them."""
    if not Path("/proc/self/environ").exists():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="there is no /proc on this system"))


@pytest.fixture(scope="session")
def material(tmp_path_factory) -> Path:
    """A folder with a corpus (also prepared), labelled texts, and a small pretrained model."""
    folder = tmp_path_factory.mktemp("material")
    write_corpus(folder / "made_up.txt", documents=24)
    write_rows(folder / "train.jsonl", 60, seed=1)
    write_rows(folder / "validation.jsonl", 30, seed=2)
    job = pretraining(f"--corpus={folder / 'made_up.txt'}", steps=2, evaluations=1).changed("--workers=1")
    finish(job, folder / "encoder", Job.fork)
    return folder


@pytest.fixture(scope="session")
def job(material: Path) -> Job:
    return pretraining(f"--prepared={material / 'encoder' / 'prepared'}")


@pytest.fixture(scope="session")
def finetune_job(material: Path) -> Job:
    return finetuning(material / "encoder" / "final", material)


@pytest.fixture(scope="session")
def finished(job: Job, tmp_path_factory) -> Path:
    """The job undisturbed."""
    return finish(job, tmp_path_factory.mktemp("finished") / "out", Job.fork)


@pytest.fixture(scope="session")
def finished_by_two(job: Job, tmp_path_factory) -> Path:
    """The job undisturbed, by two processes."""
    return finish(job.changed(processes=2), tmp_path_factory.mktemp("finished_by_two") / "out", Job.fork)


@pytest.fixture(scope="session")
def finetuned(finetune_job: Job, tmp_path_factory) -> Path:
    """The fine-tuning undisturbed."""
    return finish(finetune_job, tmp_path_factory.mktemp("finetuned") / "out", Job.fork)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """A folder that all examples of a property use, one after the other."""
    return tmp_path_factory.mktemp("shared") / "folder"
