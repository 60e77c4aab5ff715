"""Files and folders are replaced whole or not at all, whenever the process ends; JSON is read if it has its keys."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from data_prep.durable import exists, file_digest, flush_to_disk, read_object, remove_folder, replaced, write_json


def put_file(path, content):
    path.write_text(content * 1_000)


def put_folder(path, content):
    (path / "inside").mkdir(parents=True)
    for name in ("a", "inside/b"):
        put_file(path / name, content)


def content_of(path):
    return {file.relative_to(path): file.read_bytes() for file in [path, *path.rglob("*")] if file.is_file()}


@pytest.fixture(params=[put_file, put_folder], ids=["file", "folder"])
def put(request):
    return request.param


def test_what_was_there_stays_until_the_new_is_whole(put, tmp_path):
    path = tmp_path / "x"
    for content in ("old", "new"):
        before = content_of(path)
        with replaced(path) as temporary:
            put(temporary, content)
            written = content_of(temporary)
            assert content_of(path) == before
        assert content_of(path) == written and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_a_block_that_raises_leaves_what_was_there_and_nothing_beside_it(put, error, tmp_path):
    put(tmp_path / "x", "old")
    before = content_of(tmp_path)
    with pytest.raises(type(error)):
        with replaced(tmp_path / "x") as temporary:
            put(temporary, "new")
            raise error
    assert content_of(tmp_path) == before and os.listdir(tmp_path) == ["x"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not show what is open")
def test_all_is_on_the_disk_before_it_gets_its_name(put, tmp_path, monkeypatch):
    flushed, renamed, replace = set(), [], os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "replace", lambda *paths: (renamed.append(set(flushed)), replace(*paths)))
    with replaced(tmp_path / "x") as temporary:
        put(temporary, "new")
        written = {str(path) for path in [temporary, *temporary.rglob("*")]}
    assert [written <= before for before in renamed] == [True]
    # And so is the name.
    assert str(tmp_path) in flushed


def test_what_cannot_be_told_is_not_taken_for_absent(tmp_path):
    (tmp_path / "file").write_text("content")
    assert exists(tmp_path) and exists(tmp_path / "file")
    assert not exists(tmp_path / "other") and not exists(tmp_path / "file" / "below")
    with pytest.raises(OSError):
        exists(tmp_path / ("x" * 300))


def test_where_the_system_can_the_drive_is_asked_too(tmp_path, monkeypatch):
    """As on macOS; a file server that cannot is no failure."""
    asked = []

    def ask(descriptor: int, what: int) -> None:
        asked.append(what)
        raise OSError(errno.ENOTSUP, "not there")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", ask)
    flush_to_disk(tmp_path)
    assert asked == [51]


def test_a_process_killed_at_any_call_of_the_system_leaves_the_old_or_the_new(put, tmp_path):
    """The old folder may lie next to its name; the next time cleans up."""
    put(tmp_path / "old", "old")
    put(tmp_path / "new", "new")
    sides, number, status = [content_of(tmp_path / name) for name in ("old", "new")], 0, 1
    found = set()
    while status:
        path, number = tmp_path / str(number) / "x", number + 1
        path.parent.mkdir()
        put(path, "old")
        status = killed(lambda path=path: replace(path, put), number)
        left = [content_of(path) for path in path.parent.iterdir()]
        assert any(content in sides for content in left)
        found.add(content_of(path) == sides[1])
        replace(path, put)
        assert content_of(path) == sides[1] and os.listdir(path.parent) == ["x"]
    assert found == {False, True} and number > 3


def replace(path, put):
    with replaced(path) as temporary:
        put(temporary, "new")


def killed(work, at):
    """Do it in a process that is killed right before it flushes or renames for the `at`-th time; its exit status."""
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    left = [at]

    def counted(call):
        def counting(*given):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given)

        return counting

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    try:
        work()
    finally:
        os._exit(0)


def test_a_folder_is_removed_from_its_name_at_once(tmp_path):
    put_folder(tmp_path / "x", "a")
    put_folder(tmp_path / ".x.removed.tmp", "left by a kill")
    remove_folder(tmp_path / "x")
    assert not os.listdir(tmp_path)


def test_a_folder_that_is_in_use_on_nfs_is_removed_from_its_name(tmp_path, monkeypatch):
    """There a file that a program has open becomes another one in the same folder, which is not empty then."""
    put_folder(tmp_path / "x", "a")

    def not_empty(*_, **__):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", not_empty)
        remove_folder(tmp_path / "x")
    assert os.listdir(tmp_path) == [".x.removed.tmp"]


@pytest.mark.parametrize("content", [
    None, b"", b"\xff", b"{", b"[]", b"null", b"{}", b'{"a": "1", "b": []}', b'{"a": 1}', b"[" * 100_000,
])  # fmt: skip
def test_an_object_without_what_is_asked_is_none(content, tmp_path):
    path: Path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    assert read_object(path, a=int, b=list) is None


def test_an_object_with_what_is_asked_is_read(tmp_path):
    write_json(tmp_path / "x.json", {"a": 1, "b": ["\u00e9"], "c": None})
    assert read_object(tmp_path / "x.json", a=int, b=list) == {"a": 1, "b": ["\u00e9"], "c": None}


def test_json_is_written_whole_or_not_at_all(tmp_path):
    write_json(tmp_path / "x.json", {"a": "old"})
    with open(tmp_path / "x.json", encoding="utf-8") as opened_before:
        write_json(tmp_path / "x.json", {"a": "é"})
        # The new text took the old one's place; it was not written over it.
        assert json.load(opened_before) == {"a": "old"}
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"a": "é"}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_text_that_does_not_fit_leaves_the_old_one_and_nothing_beside_it(tmp_path):
    write_json(tmp_path / "x.json", "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(OSError):
            write_json(tmp_path / "x.json", "new" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert json.loads((tmp_path / "x.json").read_text()) == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_digests_tell_files_apart(tmp_path):
    digests = set()
    for number, content in enumerate([b"", b"a", b"b", b"a" * 100_000]):
        (tmp_path / str(number)).write_bytes(content)
        digests.add(file_digest(tmp_path / str(number)))
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {32}


@pytest.mark.parametrize("fails", [False, True])
def test_a_folder_that_a_killed_process_put_aside_comes_back(fails, tmp_path):
    """It was killed between the two renames."""
    path, aside = tmp_path / "final", tmp_path / ".final.old.tmp"
    aside.mkdir()
    (aside / "model").write_text("before")
    with pytest.raises(OSError) if fails else nullcontext():
        with replaced(path) as temporary:
            assert (path / "model").read_text() == "before"
            temporary.mkdir()
            (temporary / "model").write_text("after")
            if fails:
                raise OSError(28, "no space left")
    assert (path / "model").read_text() == ("before" if fails else "after")
    assert [entry.name for entry in tmp_path.iterdir()] == ["final"]


def test_of_two_processes_that_write_one_path_the_last_one_wins(tmp_path):
    path = tmp_path / "predicted.csv"
    with replaced(path, is_shared=True) as mine:
        mine.write_text("mine")
        code = "import sys; from pathlib import Path; from data_prep.durable import replaced\n"
        code += "with replaced(Path(sys.argv[1]), is_shared=True) as other: other.write_text('theirs')"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=Path(__file__).parents[2])
        assert path.read_text() == "theirs"
    assert path.read_text() == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
