"""A preparation that was killed, damaged meanwhile, or met a full disk ends as an undisturbed one, byte for byte."""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data_prep.encode import Block, BlockStore, cut_blocks
from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.prepared import MANIFEST
from data_prep.run import main
from data_prep.settings import ExampleSettings, PrepSettings

ROOT = Path(__file__).parents[2]
EXAMPLES = ExampleSettings(sequence_length=32)
OPTIONS = ["--vocab-size=256", "--workers=1", "--sequence-length=32"]
BLOCK_BYTES = 2_000
# Small blocks, and time to be killed between them.
SLOW = f"""
import sys, time
import data_prep.encode as encode, data_prep.preparation as preparation
cut, keep = encode.cut_blocks, encode._keep
preparation.cut_blocks, preparation.BLOCK_BYTES = lambda documents: cut(documents, {BLOCK_BYTES}), 0
encode._keep = lambda *block: (keep(*block), time.sleep(0.05))
"""
# Killed at the n-th time that it waits for the disk, with whatever is half-written then.
KILLED = """
import atexit, os, signal, sys
def fsync(descriptor):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)
if __name__ == "__main__":
    sync, left = os.fsync, int(sys.argv.pop(1))
    os.fsync = fsync
    atexit.register(lambda: print("left", left))
"""
RUN = """
if __name__ == "__main__":
    from data_prep.run import main
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 5))) for _ in range(300)]
    lines = [" ".join(rng.choices(words, k=rng.randint(3, 12))) + " ." for _ in range(1_500)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join("\n".join(lines[i : i + 10]) for i in range(0, 1_500, 10)))
    return path


def contents(out):
    """Every byte of a prepared corpus but its log and its lock."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in ("prep.log", ".lock")]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def prepared_again(corpus, out):
    """Prepare in this process, with the small blocks of `SLOW`."""
    settings = PrepSettings(corpus=(str(corpus),), vocab_size=256, workers=1)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as executor:
        patch.setattr("data_prep.preparation.cut_blocks", lambda documents: cut_blocks(documents, BLOCK_BYTES))
        return prepare(settings, EXAMPLES, out, executor=executor)


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    return contents(prepared_again(corpus, tmp_path_factory.mktemp("undisturbed") / "out").folder)


@pytest.fixture(scope="module")
def killed(corpus, tmp_path_factory):
    """A folder whose preparation was killed after some blocks."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "slow.py").write_text(SLOW + RUN)
    command = [sys.executable, str(folder / "slow.py"), f"--corpus={corpus}", *OPTIONS, f"--out={folder / 'out'}"]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    wait_for_blocks(process, folder / "out", 5)
    process.kill()
    process.wait()
    return folder / "out"


def wait_for_blocks(process, out, count):
    deadline = time.monotonic() + 60
    while len(list((out / ".work" / "blocks").glob("*.json"))) < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def interrupted(killed, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(killed, tmp_path / "out")


def test_a_killed_preparation_goes_on(corpus, interrupted, undisturbed, capsys):
    assert not (interrupted / MANIFEST).exists()
    prepared_again(corpus, interrupted)
    said = capsys.readouterr().out
    assert "Going on with an interrupted preparation" in said
    assert "blocks were encoded before the interruption" in said
    assert "Trained a vocabulary" not in said
    assert contents(interrupted) == undisturbed


def test_the_workers_of_a_killed_preparation_end(corpus, tmp_path):
    """They hold the pipe that they write to: it is closed only when the last of them has ended."""
    (tmp_path / "slow.py").write_text(SLOW + RUN)
    command = [sys.executable, str(tmp_path / "slow.py"), f"--corpus={corpus}", *OPTIONS, f"--out={tmp_path / 'out'}"]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    wait_for_blocks(process, tmp_path / "out", 2)
    process.kill()
    process.communicate(timeout=30)


def cut_short(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path):
    path.write_bytes(b"")


def removed(path):
    path.unlink()


def flipped(path):
    """One bit in the middle of the file: of a stored id, of a letter of the vocabulary."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("identity.json", cut_short),
        ("identity.json", emptied),
        ("identity.json", flipped),
        ("documents.bin", cut_short),
        ("documents.bin", flipped),
        ("tokenizer/tokenizer.json", cut_short),
        ("tokenizer/tokenizer.json", flipped),
        ("tokenizer/vocab.txt", flipped),
        ("tokenizer/tokenizer_config.json", removed),
        ("tokenizer.json", emptied),
        ("blocks/train-00001.npz", cut_short),
        ("blocks/train-00001.npz", emptied),
        ("blocks/train-00001.npz", flipped),
        ("blocks/train-00001.npz", removed),
        ("blocks/train-00001.json", removed),
        ("blocks/train-00001.json", flipped),
    ],
)
def test_damage_in_the_work_folder_is_made_good(name, damage, corpus, interrupted, undisturbed):
    damage(interrupted / ".work" / name)
    prepared_again(corpus, interrupted)
    assert contents(interrupted) == undisturbed


def test_a_block_with_the_ids_of_another_is_encoded_again(corpus, interrupted, undisturbed):
    """Whole for `numpy`, checksums included, but not what was written here."""
    blocks = interrupted / ".work" / "blocks"
    shutil.copy(blocks / "train-00002.npz", blocks / "train-00001.npz")
    prepared_again(corpus, interrupted)
    assert contents(interrupted) == undisturbed


def test_what_a_kill_left_beside_the_work_folder_does_no_harm(corpus, interrupted, undisturbed):
    for name in ("train/data-00000-of-00001.arrow", "tokenizer/.vocab.txt.123.tmp", ".prep_report.json.tmp",
                 "unigram_counts.npy", ".prepared.json.tmp"):  # fmt: skip
        (interrupted / name).parent.mkdir(exist_ok=True)
        (interrupted / name).write_bytes(b"half")
    prepared_again(corpus, interrupted)
    assert contents(interrupted) == undisturbed


def test_a_work_folder_left_by_a_kill_after_the_manifest_is_removed(corpus, interrupted, undisturbed, tmp_path):
    shutil.copytree(interrupted / ".work", tmp_path / "left")
    prepared_again(corpus, interrupted)
    shutil.copytree(tmp_path / "left", interrupted / ".work")
    prepared_again(corpus, interrupted)
    assert contents(interrupted) == undisturbed


def test_a_block_damaged_while_it_waits_is_refused_and_made_anew_by_the_next_run(corpus, tmp_path, undisturbed):
    """Also what was written by the same run is checked before it gets into the corpus."""
    block = tmp_path / "out" / ".work" / "blocks" / "train-00000.npz"

    class Executor(ThreadPoolExecutor):
        def submit(self, *arguments):
            if block.exists():
                flipped(block)
            return super().submit(*arguments)

    settings = PrepSettings(corpus=(str(corpus),), vocab_size=256, workers=1)
    with pytest.MonkeyPatch.context() as patch, Executor(1) as executor:
        patch.setattr("data_prep.preparation.cut_blocks", lambda documents: cut_blocks(documents, 20_000))
        with pytest.raises(PrepError, match="is damaged.*same command again"):
            prepare(settings, EXAMPLES, tmp_path / "out", executor=executor)
    shutil.rmtree(tmp_path / "out" / ".work" / "blocks")
    prepared_again(corpus, tmp_path / "out")
    assert contents(tmp_path / "out") == undisturbed


def test_a_worker_that_is_killed_is_one_sentence_and_the_same_command_goes_on(corpus, tmp_path, undisturbed, capsys):
    out, strangers = tmp_path / "out", multiprocessing.active_children()

    def deadly(documents):
        for number, block in enumerate(cut_blocks(documents, BLOCK_BYTES)):
            if number == 5:
                (worker,) = (child for child in multiprocessing.active_children() if child not in strangers)
                worker.kill()
            yield block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_prep.preparation.cut_blocks", deadly)
        patch.setattr("data_prep.preparation.BLOCK_BYTES", 0)
        assert main([f"--corpus={corpus}", *OPTIONS, f"--out={out}"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: a worker process ended while it encoded") and "same command again" in said
    assert not (out / MANIFEST).exists() and not list(out.rglob("*.tmp"))
    blocks = BlockStore(out / ".work" / "blocks")
    done = sorted(blocks.folder.glob("*.npz"))
    # Two are under way at most when it is killed.
    assert len(done) in (3, 4, 5) and all(map(Block.check, done))
    prepared_again(corpus, out)
    assert contents(out) == undisturbed


@pytest.mark.parametrize("change", ["touched", "cut short for a while"])
def test_a_file_that_changes_under_way_costs_no_finished_block(change, corpus, tmp_path, undisturbed, capsys):
    source, out = tmp_path / "corpus.txt", tmp_path / "out"
    shutil.copy2(corpus, source)

    def disturbed(documents):
        for number, block in enumerate(cut_blocks(documents, BLOCK_BYTES)):
            yield block
            if number == 8:
                os.utime(source, ns=(1, 1)) if change == "touched" else os.truncate(source, 9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_prep.text.lines._SMALL_CHUNK", 10_000)
        patch.setattr("data_prep.preparation.cut_blocks", disturbed)
        assert main([f"--corpus={source}", *OPTIONS, f"--out={out}"]) == 2
    assert "has changed" in capsys.readouterr().err
    shutil.copy(corpus, source)
    done = len(list((out / ".work" / "blocks").glob("*.json")))
    assert done >= 7
    prepared_again(source, out)
    said = capsys.readouterr().out
    assert f"{done} blocks were encoded before" in said and "Trained a vocabulary" not in said
    assert contents(out) == undisturbed


def test_blocks_of_unchanged_text_are_used_where_a_file_was_added(corpus, tmp_path, small_tokenizer, capsys):
    """With a given vocabulary and a validation corpus of its own nothing of the other files depends on it."""
    small_tokenizer.save(tmp_path / "bert", 48)
    texts = tmp_path / "texts"
    texts.mkdir()
    shutil.copy(corpus, texts / "a.txt")
    (tmp_path / "held.txt").write_text("the heart rate .\nit was stable .\n\nthe rate was low .\nit was a heart .\n")
    settings = PrepSettings(
        corpus=(str(texts),), validation_corpus=(str(tmp_path / "held.txt"),), tokenizer=str(tmp_path / "bert"),
        document="blank-line", workers=1,
    )  # fmt: skip

    def ended(documents):
        for number, block in enumerate(cut_blocks(documents, BLOCK_BYTES)):
            if number == 9:
                raise PrepError("ended")
            yield block

    def prepared(out, cut):
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as executor:
            patch.setattr("data_prep.preparation.cut_blocks", cut)
            return prepare(settings, EXAMPLES, out, executor=executor)

    with pytest.raises(PrepError, match="ended"):
        prepared(tmp_path / "out", ended)
    done = len(list((tmp_path / "out" / ".work" / "blocks").glob("*.json")))
    assert done >= 7
    (texts / "b.txt").write_text("a new heart .\nit was new .\n")
    capsys.readouterr()
    prepared(tmp_path / "out", lambda documents: cut_blocks(documents, BLOCK_BYTES))
    assert f"{done} blocks were encoded before" in capsys.readouterr().out
    prepared(tmp_path / "fresh", lambda documents: cut_blocks(documents, BLOCK_BYTES))
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def killed_at(wait, corpus, folder):
    """A preparation that is killed at a wait for the disk, counted from 1."""
    (folder / "killed.py").write_text(KILLED + RUN)
    command = [sys.executable, str(folder / "killed.py"), str(wait), f"--corpus={corpus}", *OPTIONS]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, f"--out={folder / 'out'}"], env=paths, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def num_waits(corpus, tmp_path_factory):
    never = 10**6
    done = killed_at(never, corpus, tmp_path_factory.mktemp("counted"))
    return never - int(done.stdout.rpartition("left ")[2])


@pytest.mark.parametrize("wait", [1, 6, 40, -1, 0])
def test_killed_at_any_wait_for_the_disk_it_ends_the_same(wait, corpus, tmp_path, undisturbed, num_waits):
    """The last two waits are for the manifest: for its bytes, before it has its name, and for its name."""
    is_last, out = wait == 0, tmp_path / "out"
    done = killed_at(wait if wait > 0 else num_waits + wait, corpus, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (out / ".work").exists()
    assert (out / MANIFEST).exists() == is_last
    # Blocks of another size than the killed run's would not be those that this one cuts.
    shutil.rmtree(out / ".work" / "blocks", ignore_errors=True)
    prepared_again(corpus, out)
    assert contents(out) == undisturbed


FULL_DISK = """
mount -t tmpfs -o size="$1"k tmpfs "$2" || exit 77
shift
disk=$1
shift
"$@"
echo "code $?"
test -e "$disk/out/prepared.json" && echo "looks prepared"
# With the device named too: options that are read back hold a user whom this name space does not know.
mount -o remount,size=64m tmpfs "$disk"
"$@" > /dev/null && cp -r "$disk/out" "$disk.kept"
"""


@pytest.mark.parametrize("kilobytes", [4, 150])
def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(kilobytes, corpus, tmp_path, undisturbed):
    disk = tmp_path / "disk"
    disk.mkdir()
    prep = [sys.executable, "-m", "data_prep.run", f"--corpus={corpus}", *OPTIONS, f"--out={disk / 'out'}"]
    command = ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", str(kilobytes), str(disk), *prep]
    if not shutil.which("unshare"):
        pytest.skip("a small disk is made with unshare, which is not on this machine")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip(f"mounting a small disk is not permitted here ({done.stderr.strip()})")
    out = disk / "out"
    said = f"error: the disk of {out} is full: make room and give the same command again to go on\n"
    assert done.stderr == said
    assert "code 2" in done.stdout
    assert "looks prepared" not in done.stdout
    assert contents(tmp_path / "disk.kept") == undisturbed
