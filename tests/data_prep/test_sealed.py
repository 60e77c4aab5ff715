"""Sealed manifests and the files they list: what was written comes back, and nothing else passes for it."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.durable import Damaged, check_files, file_facts, read_sealed, write_json, write_sealed

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
contents = st.dictionaries(st.text().filter(lambda name: name != "blake2b"), values, max_size=5)


@given(contents)
def test_a_manifest_comes_back_as_written(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("sealed") / "manifest.json"
    write_sealed(path, content)
    assert read_sealed(path) == content


@given(contents, st.data())
def test_a_manifest_with_any_byte_changed_or_cut_off_is_damaged(tmp_path_factory, content, data):
    path = tmp_path_factory.mktemp("sealed") / "manifest.json"
    write_sealed(path, content)
    written = path.read_bytes()
    place = data.draw(st.integers(0, len(written) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != written[place]))
    for damaged in (written[:place] + bytes([other]) + written[place + 1 :], written[:place], written + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(Damaged) as error:
            read_sealed(path)
        assert str(error.value) == f"{path} is damaged"


def test_another_line_end_is_damage(tmp_path):
    path = tmp_path / "manifest.json"
    write_sealed(path, {"a": 1})
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    with pytest.raises(Damaged, match="is damaged"):
        read_sealed(path)


def test_a_manifest_that_is_not_there_or_has_no_seal(tmp_path):
    path = tmp_path / "manifest.json"
    with pytest.raises(Damaged) as error:
        read_sealed(path)
    assert str(error.value) == f"{path} is missing"
    for content in ({"a": 1}, [], 3, None):
        write_json(path, content)
        with pytest.raises(Damaged, match="is damaged"):
            read_sealed(path)


@pytest.fixture
def unreadable() -> Path:
    """A file that opens and gives EIO when it is read: the memory at address 0 of this process."""
    path = Path("/proc/self/mem")
    try:
        path.read_bytes()
    except OSError as error:
        if error.errno == errno.EIO:
            return path
    pytest.skip("this system has no file that gives EIO")


def test_a_file_that_the_disk_does_not_give_back_is_damaged(tmp_path, unreadable):
    write_sealed(tmp_path / "manifest.json", {"a": 1})
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").symlink_to(unreadable)
    with pytest.raises(Damaged) as error:
        read_sealed(tmp_path / "manifest.json")
    assert str(error.value) == f"{tmp_path / 'manifest.json'} cannot be read (Input/output error)"
    with pytest.raises(Damaged) as error:
        check_files(unreadable.parent, {unreadable.name: {"bytes": 0, "blake2b": ""}})
    assert str(error.value) == f"{unreadable} cannot be read (Input/output error)"


@given(st.binary(min_size=1, max_size=50), st.data())
def test_files_are_compared_by_size_or_by_content(tmp_path_factory, content, data):
    folder = tmp_path_factory.mktemp("files")
    (folder / "one").write_bytes(content)
    (folder / "two").write_bytes(b"")
    facts = file_facts(folder, ["one", "two"])
    check_files(folder, facts)
    place = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "one").write_bytes(flipped)
    check_files(folder, facts, contents=False)
    with pytest.raises(Damaged) as error:
        check_files(folder, facts)
    assert str(folder / "one") in str(error.value)
    for by_content in (True, False):
        (folder / "one").write_bytes(content[:place])
        with pytest.raises(Damaged, match=f"{place} bytes instead of {len(content)}"):
            check_files(folder, facts, contents=by_content)
        (folder / "one").unlink()
        with pytest.raises(Damaged, match="is missing"):
            check_files(folder, facts, contents=by_content)
