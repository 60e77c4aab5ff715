import errno
import glob
import gzip
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.text import sources
from data_prep.text.corpus import Corpus
from data_prep.text.sources import Exclusion, resolve


def test_folders_globs_and_files_give_each_file_once_in_order(tmp_path, monkeypatch, read):
    for name in ("b.txt", "a/z.txt", "a/a.txt.gz", "a/notes.md", ".hidden/x.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    corpus = Corpus([str(tmp_path), str(tmp_path / "b.txt"), str(tmp_path / "*.txt")])
    assert [name for name, _ in corpus.files] == ["a/a.txt.gz", "a/z.txt", "b.txt"]
    assert corpus.ignored == ["a/notes.md"]
    assert [document.lines for document in corpus.documents()] == [["a/a.txt.gz"], ["a/z.txt"], ["b.txt"]]
    monkeypatch.chdir(tmp_path)
    assert read("**/*.txt*") == [["a/a.txt.gz"], ["a/z.txt"], ["b.txt"]]
    (tmp_path / "broken.txt").symlink_to(tmp_path / "gone.txt")
    assert Corpus(["*.txt"]).ignored == ["broken.txt"] and read("*.txt") == [["b.txt"]]
    assert read("b.txt", "a") == [["b.txt"], ["a/a.txt.gz"], ["a/z.txt"]]


def test_a_file_is_read_once_whatever_way_leads_to_it(tmp_path, monkeypatch):
    for name in ("notes/a.txt", "notes/deep/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "notes/also_a.txt").symlink_to("a.txt")
    (tmp_path / "notes/deep/again.txt").symlink_to(tmp_path / "notes/also_a.txt")
    (tmp_path / "link").symlink_to("notes/deep")
    monkeypatch.chdir(tmp_path / "notes")
    ways = ["a.txt", "./a.txt", "../notes/a.txt", "also_a.txt", "../link/again.txt", "../link/../a.txt",
            f"{tmp_path}/notes", "deep/b.txt", "../link/b.txt", "../link"]  # fmt: skip
    for order in (ways, ways[::-1]):
        found, _ = resolve(order)
        assert sorted(os.path.realpath(each.path) for each in found) == [
            os.path.realpath(tmp_path / name) for name in ("notes/a.txt", "notes/deep/b.txt")
        ]


def test_links_to_folders_are_left_out_of_patterns_too(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    for name in ("notes/a.txt", "notes/deep/b.txt", "other/s.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    for link, to in (("lnk", "../other"), ("self", "."), ("self2", ".")):
        Path("notes", link).symlink_to(to)
    for pattern, found in (
        ("notes/**/*.txt", ["a.txt", "b.txt"]),
        ("notes/**", ["a.txt", "deep/b.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "s.txt"]),
        ("notes/*", ["a.txt", "b.txt"]),
        ("notes/*/*.txt", ["b.txt"]),
    ):
        corpus = Corpus([pattern])
        assert sorted(os.path.basename(name) for name, _ in corpus.files) == [os.path.basename(name) for name in found]
        assert {"lnk", "self", "self2"} >= set(map(os.path.basename, corpus.ignored))
    assert set(Corpus(["notes/*"]).ignored) == {"lnk", "self", "self2"}
    # A link that a person names is followed.
    assert read("notes/lnk/*.txt") == read("notes/lnk") == [["other/s.txt"]]


def files(paths):
    return {os.path.realpath(path) for path in paths if os.path.isfile(path)}


@given(st.lists(st.sampled_from(["**", "*", "a", "b*", "[ab]", "c.txt", "*.txt", ".h"]), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_patterns_find_what_those_of_python_find(many_files, parts):
    os.chdir(many_files)
    for pattern in ("/".join(parts), "./" + "/".join(parts), f"{many_files}/" + "/".join(parts)):
        ours, theirs = sources._matches(pattern), glob.glob(pattern, recursive=True)
        below = {path for folder in ours if os.path.isdir(folder) for path in glob.glob(folder + "/**", recursive=True)}
        assert files(ours) <= files(theirs) <= files([*ours, *(below if parts[-1] == "**" else ())])


@pytest.fixture
def many_files(tmp_path, monkeypatch):
    for name in ("c.txt", "a/c.txt", "a/b/c.txt", "b1/a/b/c.txt", ".h/c.txt", "a/.h/c.txt", "b2/d.md", "a/[ab]/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_a_pattern_finds_is_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    os.mkfifo(tmp_path / "p.txt")
    corpus = Corpus([f"{tmp_path}/*.txt"])
    assert [name for name, _ in corpus.files] == ["a.txt"] and corpus.ignored == ["p.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("beside", [True, False])
def test_a_pipe_that_a_person_names_is_refused_as_text_is_read_several_times(tmp_path, beside):
    (tmp_path / "a.txt").write_text("a text")
    os.mkfifo(tmp_path / "p.txt")
    with pytest.raises(PrepError, match=r"p\.txt is no file but a pipe, .*; write it into a file"):
        Corpus([f"{tmp_path}/a.txt"] * beside + [f"{tmp_path}/p.txt"])


def test_a_link_that_may_not_be_followed_is_refused_or_left_out(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "link.txt").symlink_to(tmp_path / "elsewhere")
    found = Path.stat

    def closed_to_us(path, *, follow_symlinks=True):
        if path.name == "link.txt" and follow_symlinks:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return found(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", closed_to_us)
    with pytest.raises(PrepError, match=r"^the link link\.txt cannot be followed \(Permission denied\); check"):
        Corpus([str(tmp_path)])
    corpus = Corpus([str(tmp_path)], exclude=Exclusion(["link.txt"]))
    assert [name for name, _ in corpus.files] == ["a.txt"]


def test_a_folder_that_is_left_out_may_be_unreadable(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def closed_to_us(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed_to_us)
    with pytest.raises(PrepError, match="closed cannot be read"):
        resolve([str(tmp_path)])
    for pattern in ("closed/", "closed/*", f"{tmp_path}/closed/"):
        assert [source.name for source in resolve([str(tmp_path)], Exclusion((pattern,)))[0]] == ["a.txt"]


def test_what_this_tool_wrote_is_no_text(tmp_path, monkeypatch, read, refused):
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.txt", "in/run/final/vocab.txt", "in/run/prepared/tokenizer/vocab.txt", "in/more/b.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    for name in ("settings.yaml", "metrics.jsonl"):
        Path("in/run", name).touch()
    for paths in (["in"], ["in/*"], ["in/**"], ["in/**/*.txt"], ["*"], ["./*/*"], [f"{tmp_path}/in/*"]):
        corpus = Corpus(paths)
        assert sorted(document.lines[0] for document in corpus.documents()) == ["in/a.txt", "in/more/b.txt"]
        assert [name.endswith("run/ (a run or a model)") for name in corpus.ignored] == [True], paths
    exclude = Exclusion(["vocab.txt"])
    assert len(Corpus(["in/**/*.txt"], exclude=exclude).files) == 2
    exclude.check(["in/**/*.txt"])
    refused("in/ru*", r"ru\* holds no file that can be read \(only runs and models are there\)")
    # Predictions are often saved in the folder of a model.
    assert [source.name for source in resolve(["in/*/final/*.txt"], labelled=True)[0]] == ["vocab.txt"]
    # What a person names is read.
    assert read("in/run/final/*.txt") == [["in/run/final/vocab.txt"]]
    Path("in/more/.work").mkdir()
    assert read("in/more") == [["in/more/b.txt"]]
    refused(tmp_path / "in" / "run", "run is the folder of a run or a model; give your text")


def test_missing_and_unusable_paths_say_what_is_there(tmp_path, refused):
    (tmp_path / "cases.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "slides.pdf").write_text("a")
    (tmp_path / "slides.pptx").write_text("a")
    (tmp_path / "zero.txt").write_text("")
    refused(tmp_path / "case.txt", r"case\.txt does not exist; the nearest name in its folder is cases\.txt")
    refused(tmp_path / "no" / "a.txt", "does not exist: there is no folder .*no")
    refused(tmp_path / "slides.pdf", r"slides\.pdf is of no known format; \.pdf is .* give .*\.jsonl.*\.parquet")
    refused(tmp_path / "slides.pptx", r"slides\.pptx is of no known format; give .*\.jsonl.*\.parquet")
    refused(tmp_path / "empty", r"empty holds no file that can be read \(nothing is there\); give .*\.txt")
    refused(tmp_path / "*.pdf", r"\(1 files of other formats\)")
    refused(tmp_path / "zero.txt", r"zero\.txt holds no bytes at all")
    with pytest.raises(PrepError, match="no text is named"):
        Corpus([])


def test_a_folder_of_arrays_of_rows_is_refused_with_the_pattern_that_takes_them(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.json").write_text("[]")
    with pytest.raises(PrepError, match=r"give .*rows/\*\.json, if these hold rows, or text"):
        resolve([str(tmp_path / "rows")], labelled=True)
    assert [source.name for source in resolve([f"{tmp_path}/rows/*.json"], labelled=True)[0]] == ["a.json"]


@pytest.mark.parametrize(
    ("ending", "program"), [("docx", "pandoc"), ("odt", "pandoc"), ("HTML", "trafilatura"), ("pdf", r"pdfminer\.six")]
)
def test_documents_of_offices_are_refused_with_what_makes_text_of_them(tmp_path, ending, program, refused):
    (tmp_path / "in").mkdir()
    for name in (f"a.{ending}", f"b.{ending}", "picture.png"):
        (tmp_path / "in" / name).write_bytes(b"PK")
    remedy = rf"; \.{ending.lower()} is made into text with {program} \(docs/your_text\.md .*, or give text"
    refused(tmp_path / "in", r"holds no file that can be read \(3 files of other formats\)" + remedy)
    refused(tmp_path / "in" / f"a.{ending}", "is of no known format" + remedy)
    page = (Path(__file__).parents[3] / "docs" / "your_text.md").read_text()
    assert re.search(rf"{program}.*```bash\n.*```\n.*`\.{ending.lower()}`", page, re.DOTALL)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path, monkeypatch):
    good, bad = b"It rained on that day.\n", b"caf\xe9\n"
    for folder in ("one", "two", "three/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "notes.txt").write_bytes(bad if folder == "two" else good)
        (tmp_path / folder / "rows.jsonl").write_text('{"note": 5}\n' if "deep" in folder else '{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    for paths in (["one", "two"], ["one/notes.txt", "two/notes.txt"], ["*/notes.txt"], ["."]):
        with pytest.raises(PrepError, match=r"^two/notes\.txt:1 is not valid utf-8"):
            list(Corpus(paths).documents())
    with pytest.raises(PrepError, match=r"^three/deep/rows\.jsonl has no col.* --exclude three/deep/rows\.jsonl$"):
        Corpus(["one/rows.jsonl", "three"])
    left = Exclusion(["three/deep/rows.jsonl"])
    assert len(Corpus(["one/rows.jsonl", "three"], exclude=left).files) == 2
    (tmp_path / "three" / "deep" / "rows.jsonl").write_text('{"text": 5}\n')
    # What is prepared does not depend on where it was found, and its report names no folder above.
    skipped = Corpus(["one/rows.jsonl", str(tmp_path / "three")], skip_bad_rows=True, text_column="text")
    list(skipped.documents())
    assert skipped.bad_rows.listed[0].startswith("deep/rows.jsonl:1 has a number")
    assert skipped.digest() == Corpus([str(tmp_path / "one/rows.jsonl"), "three"], text_column="text").digest()


def test_files_can_be_left_out(tmp_path, refused):
    for name in ("a.txt", "b.txt", "in/a.txt", "in/c.jsonl", "in/deep/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"id": 1, "x": 2}' if name.endswith("jsonl") else f"Words of {name}.")

    def left(*patterns):
        exclude = Exclusion(patterns)
        corpus = Corpus([str(tmp_path)], exclude=exclude)
        exclude.check([str(tmp_path)])
        return [name for name, _ in corpus.files]

    assert left("*.jsonl") == ["a.txt", "b.txt", "in/a.txt", "in/deep/d.txt"]
    assert left("c.jsonl", "a.txt") == ["b.txt", "in/deep/d.txt"]
    assert left("in/*") == left("in/") == ["a.txt", "b.txt"]
    assert left(str(tmp_path / "in/a.txt"), "c.jsonl") == ["a.txt", "b.txt", "in/deep/d.txt"]
    with pytest.raises(PrepError, match=r"--exclude \[ab\].txt names no file"):
        left("c.jsonl", "[ab].txt")
    (tmp_path / "b.txt").rename(tmp_path / "b [2].txt")
    assert left("b [2].txt", "in/") == ["a.txt"]
    with pytest.raises(PrepError, match="--exclude d.jsonl names no file in"):
        left("c.jsonl", "d.jsonl")
    with pytest.raises(PrepError, match="--exclude leaves nothing of"):
        left("*")
    refused(tmp_path, r"in/c\.jsonl has no column that .* columns: id, x, which hold .*\); .* --exclude '?in/c\.jsonl")
