"""A checkpoint of which a single bit is not as it was written is never used."""

import errno
import gc
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from drive import finish
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lives import Forked
from runs import Job, differences, rows_of

from data_prep import durable
from data_prep.errors import ReadingFailed
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForPreTraining
from pretrain.engine.checkpoint import Checkpoints, damage_of, load_optimizer
from pretrain.engine.optimizer import Optimizer
from pretrain.engine.settings import PretrainError

FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def checkpoints(finished, tmp_path_factory) -> Checkpoints:
    """Those of a finished run, in a copy. A test that damages them mends them again."""
    folder = tmp_path_factory.mktemp("damage") / "checkpoints"
    shutil.copytree(finished / "checkpoints", folder)
    return Checkpoints(folder, WordPieceTokenizer.load(max(folder.iterdir())), keep=2)


def all_files_of(checkpoint: Path) -> list[str]:
    return sorted(path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())


def files_of(checkpoint: Path) -> list[str]:
    names = all_files_of(checkpoint)
    assert {"model.safetensors", "config.json", "vocab.txt", "training_state/manifest.json"} < set(names)
    return names


def found_damaged(checkpoints: Checkpoints, name: str, content: bytes | None, capsys) -> None:
    """That a file with this content is named and the checkpoint before it is used."""
    newest, before = checkpoints.all()[-1], checkpoints.all()[-2]
    path = newest / name
    whole = path.read_bytes()
    aside = newest.with_name(f"damaged-{newest.name}")
    try:
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert checkpoints.newest_intact() == before
        said = capsys.readouterr().out
        assert str(path) in said and str(aside) in said
        assert checkpoints.all()[-1] == before and aside.is_dir()
    finally:
        if aside.exists():
            aside.rename(newest)
        path.write_bytes(whole)


@FEW
@given(data=st.data())
def test_a_flipped_bit_in_any_file_of_the_newest_checkpoint_is_found(checkpoints, capsys, data):
    newest = checkpoints.all()[-1]
    for name in files_of(newest):
        content = bytearray((newest / name).read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        found_damaged(checkpoints, name, bytes(content), capsys)
    assert checkpoints.newest_intact() == newest


@FEW
@given(data=st.data())
def test_any_file_cut_short_or_empty_or_missing_is_found(checkpoints, capsys, data):
    newest = checkpoints.all()[-1]
    for name in files_of(newest):
        content = (newest / name).read_bytes()
        cut = content[: data.draw(st.integers(0, len(content) - 1))]
        found_damaged(checkpoints, name, data.draw(st.sampled_from([cut, b"", None])), capsys)


def test_no_flipped_bit_of_a_manifest_passes(checkpoints):
    """Of every byte one bit."""
    newest = checkpoints.all()[-1]
    path = newest / "training_state" / "manifest.json"
    whole = path.read_bytes()
    try:
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            assert damage_of(newest) is not None, place
    finally:
        path.write_bytes(whole)
    assert damage_of(newest) is None


def test_where_all_are_damaged_the_run_is_not_begun_anew_unasked(checkpoints, tmp_path):
    shutil.copytree(checkpoints.folder, tmp_path / "checkpoints")
    copy = Checkpoints(tmp_path / "checkpoints", checkpoints.tokenizer, keep=2)
    oldest = copy.all()[0]
    for checkpoint in copy.all():
        (checkpoint / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(PretrainError, match=f"no checkpoint .* is intact .*{oldest.name}/model.safetensors"):
        copy.newest_intact()
    # Nor the second time, as a launcher starts it again.
    with pytest.raises(PretrainError, match="no checkpoint .* is intact"):
        copy.newest_intact()


@pytest.fixture
def three(small_tokenizer, tmp_path) -> Checkpoints:
    """Checkpoints of the steps 1, 2, 3."""
    model = tiny_model(small_tokenizer.vocab_size)
    checkpoints = Checkpoints(tmp_path / "checkpoints", small_tokenizer, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, model, Optimizer(model, "adamw", 1e-3, 0.0), {"needs": []})
    return checkpoints


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not show what is mapped")
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_a_run_goes_on_with_is_not_the_file_of_its_checkpoint(small_tokenizer, tmp_path, kind):
    """On NFS, a file that is mapped cannot be removed."""
    model = tiny_model(small_tokenizer.vocab_size)
    optimizer = Optimizer(model, kind, 1e-3, 0.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    checkpoints = Checkpoints(tmp_path / "checkpoints", small_tokenizer, keep=1)
    checkpoints.save(1, model, optimizer, {"needs": []})
    other = Optimizer(model, kind, 1e-3, 0.0)
    load_optimizer(checkpoints.path(1), other)
    gc.collect()
    assert str(checkpoints.path(1)) not in Path("/proc/self/maps").read_text()
    assert other.has_state and all(
        torch.equal(value, optimizer.state_tensors()[name]) for name, value in other.state_tensors().items()
    )


def test_a_checkpoint_that_cannot_be_removed_ends_no_run(small_tokenizer, three, capsys, monkeypatch):
    def refused(folder):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), folder)

    monkeypatch.setattr("pretrain.engine.checkpoint.remove_folder", refused)
    model = tiny_model(small_tokenizer.vocab_size)
    three.save(4, model, Optimizer(model, "adamw", 1e-3, 0.0), {"needs": []})
    assert three.newest_intact() == three.path(4)
    said = f"Warning: {three.path(1)} could not be removed (Operation not permitted), and takes up space on the disk.\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_for_the_moment_is_not_damaged(three, monkeypatch, name):
    """As on a file server that was away."""

    def refusing(call):
        def asked(path, *given, **named):
            if str(path).endswith(name):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return call(path, *given, **named)

        return asked

    with monkeypatch.context() as patched:
        patched.setattr("data_prep.durable.file_digest", refusing(durable.file_digest))
        patched.setattr(Path, "read_bytes", refusing(Path.read_bytes))
        with pytest.raises(ReadingFailed, match=f"{name} cannot be read .*: give the same command again"):
            three.newest_intact()
    assert three.newest_intact() == three.path(3) and len(three.all()) == 3


def damage_step(checkpoints: Checkpoints, step: int) -> None:
    (checkpoints.path(step) / "model.safetensors").write_bytes(b"no weights")


def test_of_the_checkpoints_up_to_a_step_there_may_be_no_intact_one(three):
    """Those after it are left alone: the run goes on from the newest."""
    newest = three.path(3)
    damage_step(three, 2)
    assert three.newest_intact(up_to=2) == three.path(1)
    damage_step(three, 1)
    assert three.newest_intact(up_to=2) is None
    assert three.all() == [newest] and three.newest_intact() == newest
    damage_step(three, 3)
    with pytest.raises(PretrainError, match="no checkpoint .* is intact"):
        three.newest_intact()


def test_a_checkpoint_of_the_first_format_is_refused_and_left_as_it_is(three):
    newest = three.path(3)
    state = newest / "training_state" / "state.json"
    (newest / "training_state" / "manifest.json").unlink()
    content = json.loads(state.read_text())
    del content["format"]
    state.write_text(json.dumps(content))
    before = {name: (newest / name).read_bytes() for name in all_files_of(newest)}
    with pytest.raises(PretrainError) as error:
        three.newest_intact()
    said = str(error.value)
    assert said.startswith(f"{newest} was written by another version") and "--out" in said and "\n" not in said
    assert three.all()[-1] == newest
    assert {name: (newest / name).read_bytes() for name in all_files_of(newest)} == before


def test_a_checkpoint_of_this_format_whose_manifest_is_gone_is_damaged(three, capsys):
    newest = three.path(3)
    manifest = newest / "training_state" / "manifest.json"
    manifest.unlink()
    assert three.newest_intact() == three.path(2)
    aside = newest.with_name(f"damaged-{newest.name}")
    assert aside.is_dir() and not newest.exists()
    assert capsys.readouterr().out == f"{manifest} is missing: not used, and renamed to {aside}.\n"


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(job, finished, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "results.json").unlink()
    shutil.rmtree(out / "final")
    before, newest = sorted((out / "checkpoints").iterdir())[-2:]
    path = newest / "training_state" / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    # What a kill leaves inside the writing and the removal of checkpoints that the run does not come to again.
    for hidden in (".step-00000002.tmp", ".step-00000003.old.tmp"):
        (out / "checkpoints" / hidden).mkdir()
    with job.fork(out, tmp_path / "log") as life:
        assert life.wait() == 0, life.err
        assert f"{path} is damaged" in life.out and f"Resuming from {before}." in life.out
    shutil.rmtree(newest.with_name(f"damaged-{newest.name}"))
    assert not differences(out, finished)


@pytest.mark.slow
def test_a_damaged_best_checkpoint_does_not_become_the_result(finetune_job, tmp_path):
    """The best may be older than the newest, and is read only in the end."""
    out = tmp_path / "out"
    # The first step has the learning rate 0, the others one so large that they undo what was learned.
    job = finetune_job.changed("--seeds=1", "--learning-rate=1", "--warmup=0.9", steps=6, evaluations=6)
    whole = finish(job, tmp_path / "whole", Job.fork)
    losses = {row["step"]: row["validation"]["loss"] for row in rows_of(whole / "seed-1") if "validation" in row}
    best = min(losses, key=losses.get)
    assert best == 1
    with job.fork(out, tmp_path / "log") as life:
        assert life.wait_until((out / "seed-1" / "checkpoints" / f"step-{best + 3:08d}").exists)
        life.kill()
    path = out / "seed-1" / "checkpoints" / f"step-{best:08d}" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with Forked(job.module, job.given(out), tmp_path / "again") as life:
        code = life.wait()
    if code == 0:
        assert not differences(out, whole)
    else:
        assert code == 2 and str(path) in life.err


def tiny_model(vocab_size: int) -> BertForPreTraining:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    return BertForPreTraining(BertConfig(vocab_size=vocab_size, max_position_embeddings=8, **sizes))


@pytest.fixture(scope="module")
def tiny_run(checkpoints):
    model = tiny_model(checkpoints.tokenizer.vocab_size)
    return model, Optimizer(model, "adamw", 1e-3, 0.0), checkpoints.tokenizer


EVENTS = ["save", "damaged config", "damaged state", "restart"]


@settings(max_examples=15, deadline=None)
@given(keep=st.integers(1, 2), story=st.lists(st.sampled_from(EVENTS), max_size=8))
def test_whatever_is_damaged_there_is_an_intact_checkpoint_after_every_save(tiny_run, shared_folder, keep, story):
    model, optimizer, tokenizer = tiny_run
    shutil.rmtree(shared_folder, ignore_errors=True)
    checkpoints, step = Checkpoints(shared_folder, tokenizer, keep), 0
    for event in ["save", *story]:
        intact = [path for path in checkpoints.all() if damage_of(path) is None]
        if event == "save":
            step += 1
            checkpoints.save(step, model, optimizer, {"needs": []})
            assert damage_of(checkpoints.path(step)) is None
        elif event == "damaged config":
            (checkpoints.all()[-1] / "config.json").write_bytes(b"{}")
        elif event == "damaged state":
            (checkpoints.all()[-1] / "training_state" / "state.json").write_bytes(b"{}")
        elif event == "restart" and intact:
            assert checkpoints.newest_intact() == intact[-1]
            assert all(path in checkpoints.all() for path in intact)
