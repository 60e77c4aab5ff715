"""`python -m finetune.embed`: files of vectors, from every form of input, whole after an interruption."""

import json
import re
import resource
import tracemalloc
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text import lines
from finetune import embed as module
from finetune.embed import main
from finetune.predictor import Facts
from finetune.settings import FinetuneError
from finetune.vectors import vector_files
from finetune.vectors.cosines import RandomCosine
from finetune.vectors.embedder import Embedder
from finetune.vectors.vector_files import LinesFile, to_parquet
from model import BertForPreTraining
from pretrain.engine.checkpoint import save_model_folder

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS = 35


@pytest.fixture
def rows():
    return [{"text": f"the heart rate {n}" + " of the patient" * (n % 3), "n": n} for n in range(ROWS)]


@pytest.fixture
def embed(encoder, capsys):
    """(arguments) -> what a command that goes well prints."""

    def run(*given, model=encoder):
        assert main([f"--model={model}", "--device=cpu", *map(str, given)]) == 0, capsys.readouterr().err
        return capsys.readouterr()

    return run


@pytest.fixture
def refused(encoder, capsys):
    """(arguments) -> the sentence of a command that is refused."""

    def run(*given, model=encoder):
        assert main([f"--model={model}", "--device=cpu", *map(str, given)]) == 2
        found = capsys.readouterr()
        assert not found.out and found.err.startswith("error: ") and found.err.count("\n") == 1
        return found.err[7:-1]

    return run


# --- files


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_numpy_file_has_a_row_for_each_text(embed, encoder, write_rows, rows, tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 10)
    out = tmp_path / "vectors.npy"
    said = embed(write_rows(rows), f"--out={out}", f"--dtype={dtype}").err
    found = np.load(out, mmap_mode="r")
    expected = Embedder(encoder).embed([row["text"] for row in rows])
    assert found.shape == (ROWS, 32) and found.dtype == dtype
    assert np.abs(found - expected).max() <= (2e-3 if dtype == "float16" else 2e-6) * np.abs(expected).max()
    assert (
        said.startswith(f"{ROWS} rows, ") and "the mean of the tokens of layer 2, 32 numbers, texts of up to 48" in said
    )


def test_all_forms_hold_the_same_vectors_to_the_bit(embed, write_rows, rows, tmp_path):
    file = write_rows(rows)
    for name in ("v.npy", "v.parquet", "v.jsonl"):
        embed(file, f"--out={tmp_path / name}")
    expected = np.load(tmp_path / "v.npy")
    lines = [json.loads(line) for line in embed(file).out.splitlines()]
    assert lines == [json.loads(line) for line in open(tmp_path / "v.jsonl")]
    assert [{name: line[name] for name in ("text", "n")} for line in lines] == rows
    assert list(lines[0]) == ["text", "n", "vector"]
    assert (np.array([line["vector"] for line in lines], np.float32) == expected).all()
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column_names == ["text", "n", "vector"]
    assert table.schema.field("vector").type.value_type == pa.float32()
    assert (np.array(table["vector"].to_pylist(), np.float32) == expected).all()
    assert table.select(["text", "n"]).to_pylist() == rows
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", "v.jsonl", "v.npy", "v.parquet"]


@pytest.mark.parametrize("kind", ["words", "tokens"])
def test_words_and_tokens_are_lists_beside_the_row(embed, encoder, write_rows, rows, tmp_path, kind):
    out = tmp_path / "parts.parquet"
    said = embed(write_rows(rows), f"--{kind}", f"--out={out}").err
    table = pq.read_table(out)
    assert table.column_names == ["text", "n", kind, "start", "end", "vectors"] and f"for each of their {kind}" in said
    expected = getattr(Embedder(encoder), f"embed_{kind}")([row["text"] for row in rows])
    for found, own in zip(table.to_pylist(), expected, strict=True):
        assert [found[name] for name in (kind, "start", "end")] == [own[name] for name in (kind, "start", "end")]
        assert np.array(found["vectors"], np.float32) == pytest.approx(own["vectors"], abs=1e-5)
    line = json.loads(embed(write_rows(rows[:1], "one.jsonl"), f"--{kind}").out)
    assert np.array(line["vectors"]) == pytest.approx(np.array(table["vectors"][0].as_py()), abs=1e-5)


def test_a_row_without_a_text_keeps_its_place(embed, refused, write_rows, tmp_path):
    file = write_rows([{"text": "heart rate"}, {"text": " "}, {"n": 3}, {"text": "the patient"}, {"text": 5}])
    assert "train.jsonl:2 has an empty" in (said := refused(file)) and "give such rows no vector" in said
    said = embed(file, "--skip-bad-rows", f"--out={tmp_path / 'v.npy'}").err
    assert "5 rows, 3 of them without a usable text (np.isnan(vectors[:, 0]))" in said
    found = np.load(tmp_path / "v.npy")
    assert np.isnan(found).all(1).tolist() == np.isnan(found).any(1).tolist() == [False, True, True, False, True]
    for kind, name in ((None, "vector"), ("--words", "vectors")):
        options = ["--skip-bad-rows", *filter(None, [kind])]
        embed(file, *options, f"--out={tmp_path / f'{name}.parquet'}")
        column = pq.read_table(tmp_path / f"{name}.parquet")[name]
        assert column.is_null().to_pylist() == [False, True, True, False, True]
        lines = [json.loads(line) for line in embed(file, *options).out.splitlines()]
        assert [line[name] is None for line in lines] == [False, True, True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "counts"), [
    (("v.parquet",), (500, 2_000)), (("w.parquet", "--words"), (150, 600)),
])  # fmt: skip
def test_memory_does_not_grow_with_the_file(embed, write_rows, tmp_path, monkeypatch, options, counts):
    # All that is held at once is less than the smaller file.
    monkeypatch.setattr(vector_files, "_BYTES_AT_ONCE", 75_000)
    monkeypatch.setattr(lines, "_SMALL_CHUNK", 1 << 12)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 256)
    monkeypatch.setattr(module, "ROWS_OF_PARTS", 16)
    name, *more = options
    peaks = []
    # The first one imports what is needed, which takes long while it is traced.
    for count in (10, *counts):
        file = write_rows([{"text": f"the heart rate {n}" + " of the patient" * (n % 3)} for n in range(count)])
        if count > 10:
            tracemalloc.start()
        embed(file, f"--out={tmp_path / f'{count}-{name}'}", *more)
        if count > 10:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_a_model_that_gives_no_numbers_is_one_sentence(encoder):
    embedder = Embedder(encoder)
    with torch.no_grad():
        embedder.model.embeddings.norm.bias[0] = float("nan")
    with pytest.raises(FinetuneError, match="numbers that are not finite"):
        embedder.embed(["the heart"])


def test_columns_of_a_table_keep_what_they_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "_BYTES_AT_ONCE", 200)
    columns = {
        "i": [1, 2, None, 4], "f": [1, 2, 3.5, 2**60], "s": ["a", "\ud83d x", None, "é"], "none": [None] * 4,
        "mixed": [1, "b", [1], None], "list": [[1, 2], None, [], [3]], "nested": [{"a": [1]}, None, {"b": 2}, {}],
        "b": [True, False, None, True], "hash": [2**63 + 1, 5, None, 2**64 - 1], "id": [1, 2, 2**64 - 1, 3],
        "long": [2**70, -1, None, 2], "half": [0.5, 2**63, None, 1], "late": [None, None, "x", None],
        "lists": [[2**60 + 1], [1.5], None, [2]], "\ud800": [1, 2, 3, 4],
    }  # fmt: skip
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    # A row may lack what others have.
    del rows[1]["late"]
    with open(tmp_path / "lines", "w", encoding="utf-8", errors="backslashreplace") as file:
        LinesFile(file, ["vector"]).write(
            rows, [{"vector": np.full(2, n, np.float32)} if n else None for n in range(4)]
        )
    to_parquet(tmp_path / "lines", tmp_path / "table.parquet", names=["vector"])
    found = pq.read_table(tmp_path / "table.parquet").to_pydict()
    assert found == {
        "i": [1, 2, None, 4], "f": [1.0, 2.0, 3.5, 2.0**60], "s": ["a", "\ufffd x", None, "é"], "none": [None] * 4,
        "mixed": ["1", "b", "[1]", None], "list": [[1, 2], None, [], [3]],
        "nested": ['{"a": [1]}', None, '{"b": 2}', "{}"], "b": [True, False, None, True],
        "hash": [2**63 + 1, 5, None, 2**64 - 1], "id": [1, 2, 2**64 - 1, 3], "long": [str(2**70), "-1", None, "2"],
        "half": [0.5, 2.0**63, None, 1.0],
        "lists": [[2.0**60], [1.5], None, [2.0]], "\ufffd": [1, 2, 3, 4],
        "late": [None, None, "x", None], "vector": [None, [1, 1], [2, 2], [3, 3]],
    }  # fmt: skip


@pytest.mark.parametrize("form", ["npy", "parquet", "jsonl"])
def test_an_empty_file_has_no_vectors(embed, tmp_path, form):
    (tmp_path / "empty.txt").touch()
    assert embed(tmp_path / "empty.txt", f"--out={tmp_path}/v.{form}").err.startswith("0 rows, ")
    found = {
        "npy": lambda path: np.load(path).shape,
        "parquet": lambda path: pq.read_table(path).shape[0],
        "jsonl": lambda path: path.read_text(),
    }[form](tmp_path / f"v.{form}")
    assert found == {"npy": (0, 32), "parquet": 0, "jsonl": ""}[form]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=4), st.integers(1, 5000))
def test_the_header_has_room_for_any_number_of_rows(counts, width):
    import io

    file = io.BytesIO()
    written = vector_files.NumpyFile(file, width, "float32")
    begin = file.tell()
    for count in counts:
        written.rows += count
        written.close()
        assert file.tell() == begin and begin % 64 == 0
    file.seek(0)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == ((sum(counts), width), False, np.dtype("float32"))


# --- interruptions


@pytest.mark.parametrize(("form", "options"), [
    ("npy", []), ("npy", ["--dtype=float16"]), ("jsonl", []), ("parquet", []), ("parquet", ["--words"]),
])  # fmt: skip
def test_the_same_command_goes_on_and_the_file_is_the_same(
    encoder, write_rows, rows, tmp_path, monkeypatch, capsys, form, options
):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(module, "ROWS_OF_PARTS", 10)
    rows[17]["text"] = ""
    rows[3]["text"] = rows[25]["text"] = "the heart " * 60
    file = write_rows(rows)

    def given(name):
        return [
            file,
            f"--model={encoder}",
            f"--out={tmp_path / name}.{form}",
            "--device=cpu",
            "--skip-bad-rows",
            *options,
        ]

    assert main(given("whole")) == 0
    expected = capsys.readouterr().err
    method = "of_parts" if options == ["--words"] else "of_texts"
    asked, real = [], getattr(Embedder, method)

    def interrupted(self, texts, *kind):
        asked.append(len(texts))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(self, texts, *kind)

    monkeypatch.setattr(Embedder, method, interrupted)
    assert main(given("out")) == 130
    out = tmp_path / f"out.{form}"
    assert not out.exists() and (tmp_path / f"out.{form}.part").exists()
    capsys.readouterr()
    assert main(given("out")) == 0
    first, *sentences = capsys.readouterr().err.splitlines()
    assert first.startswith("going on after row 20") and sum(asked[3:]) == ROWS - 20
    # What is said is of all rows, not of those that were left.
    assert "35 rows, 1 of them without a usable text" in expected and ", 2 longer than 48 tokens" in expected
    assert [re.sub(r"\d+\.\d s", "", line) for line in sentences] == [
        re.sub(r"\d+\.\d s", "", line) for line in expected.splitlines()
    ]
    assert len(sentences) == (1 if options == ["--words"] else 2)
    assert out.read_bytes() == (tmp_path / f"whole.{form}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{form}", "train.jsonl", f"whole.{form}"]


@pytest.mark.parametrize(("form", "limit"), [("npy", 3900), ("parquet", 9000)])
def test_a_full_disk_loses_nothing(encoder, write_rows, rows, tmp_path, monkeypatch, capsys, form, limit):
    """A limit on the size of a file stands for it."""
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 10)
    given = [write_rows(rows), f"--model={encoder}", f"--out={tmp_path / 'v'}.{form}", "--device=cpu"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert main(given) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "check permissions and free space" in capsys.readouterr().err
    assert not (tmp_path / f"v.{form}").exists()
    assert main(given) == 0 and "going on after row" in capsys.readouterr().err
    vectors = (
        np.load(tmp_path / "v.npy") if form == "npy" else pq.read_table(tmp_path / "v.parquet")["vector"].to_pylist()
    )
    expected = Embedder(encoder).embed([row["text"] for row in rows])
    assert np.array(vectors, np.float32) == pytest.approx(expected, abs=1e-5)


def test_a_table_that_cannot_be_made_is_made_by_the_same_command(
    encoder, write_rows, rows, tmp_path, monkeypatch, capsys
):
    made = vector_files.to_parquet

    def full(lines, target, names):
        target.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    given = [write_rows(rows), f"--model={encoder}", f"--out={tmp_path / 'v.parquet'}", "--device=cpu"]
    monkeypatch.setattr(vector_files, "to_parquet", full)
    assert main(given) == 2 and "No space left" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", "v.parquet.part", "v.parquet.part.json"]
    monkeypatch.setattr(vector_files, "to_parquet", made)
    assert main(given) == 0 and f"going on after row {ROWS}" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "v.parquet").num_rows == ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", "v.parquet"]


# --- input


def test_plain_text_and_tables_give_the_same(embed, write_rows, tmp_path):
    texts = ["heart rate", "😀 the patient", "x" * 1_000_000, " ".join(["heart"] * 10_000)]
    (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    said = embed(tmp_path / "a.txt", f"--out={tmp_path / 'a.npy'}").err
    embed(write_rows([{"content": text} for text in texts]), f"--out={tmp_path / 'b.npy'}")
    assert (np.load(tmp_path / "a.npy") == np.load(tmp_path / "b.npy")).all()
    assert "1 longer than 48 tokens (their beginning was read)" in said
    said = embed(tmp_path / "a.txt", "--long-text=windows", f"--out={tmp_path / 'c.npy'}").err
    assert "(read in windows)" in said
    whole = np.load(tmp_path / "c.npy") == np.load(tmp_path / "a.npy")
    assert whole[:3].all() and not whole[3].all()


def test_the_column_of_training_goes_before_the_usual_ones(embed, encoder, small_tokenizer, write_rows, tmp_path):
    folder = tmp_path / "model"
    save_model_folder(BertForPreTraining.from_pretrained(encoder), small_tokenizer, folder)
    rows = [{"text": "heart", "note": "rate"}]
    plain = json.loads(embed(write_rows(rows), model=folder).out)["vector"]
    Facts(("note",), 48, "head").write(folder)
    assert json.loads(embed(write_rows(rows), model=folder).out)["vector"] != plain
    assert json.loads(embed(write_rows(rows), "--text-column=text", model=folder).out)["vector"] == plain
    Facts(("a", "b"), 48, "head").write(folder)
    assert json.loads(embed(write_rows(rows), model=folder).out)["vector"] == plain


def test_words_of_a_list_are_its_words_in_any_file(embed, tmp_path):
    words = ["the", "heart-rate,"]
    (tmp_path / "a.jsonl").write_text(json.dumps({"tokens": words}))
    (tmp_path / "a.csv").write_text('id,tokens\n1,"' + json.dumps(words).replace('"', '""') + '"\n')
    for name in ("a.jsonl", "a.csv"):
        (line,) = [json.loads(line) for line in embed(tmp_path / name, "--words").out.splitlines()]
        assert line["words"] == words


def test_words_of_a_conll_file_are_its_words(embed, tmp_path):
    (tmp_path / "a.conll").write_text("the\tO\nheart-rate\tB-x\n\n7\tO\n\n")
    lines = [json.loads(line) for line in embed(tmp_path / "a.conll", "--words").out.splitlines()]
    assert [line["words"] for line in lines] == [["the", "heart-rate"], ["7"]]


# --- what is said


def test_random_pairs_are_all_pairs():
    vectors = np.random.default_rng(0).normal(1, 1, (9, 5)).astype(np.float32)
    cosine = RandomCosine()
    cosine.add(vectors[:4])
    cosine.add(vectors[4:])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert cosine.mean() == pytest.approx(np.mean([a @ b for a, b in combinations(unit, 2)]), abs=1e-6)
    one = RandomCosine()
    one.add(vectors[:1])
    assert one.mean() is None


def test_the_cosine_of_random_texts_is_said(embed, encoder, write_rows, rows, tmp_path):
    said = embed(write_rows(rows), f"--out={tmp_path / 'v.npy'}").err
    vectors = np.load(tmp_path / "v.npy")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = np.mean([a @ b for a, b in combinations(unit, 2)])
    assert f"Two of these texts at random have a cosine of {mean:.2f}: " in said
    assert "at random" not in embed(write_rows(rows[:1])).err
    assert "at random" not in embed(write_rows(rows), "--words").err


def test_no_text_is_shown_where_that_is_forbidden(embed, refused, write_rows, tmp_path, capsys):
    file = write_rows([{"text": "zorblatt heart"}, {"text": "zorblatt rate"}])
    assert "give --out" in refused(file, "--show-text=no")
    printed = embed(file, "--show-text=no", f"--out={tmp_path / 'v.npy'}")
    assert "zorblatt" not in printed.out + printed.err
    unnamed = tmp_path / "unnamed.csv"
    unnamed.write_text("7,zorblatt fell\n8,zorblatt is well\n")
    assert "zorblatt" not in refused(unnamed, "--show-text=no", f"--out={tmp_path / 'w.npy'}")


def test_a_model_folder_is_saved_instead(embed, refused, encoder, tmp_path):
    folder = tmp_path / "search"
    said = embed("--normalize", "--pooling=max", "--sequence-length=16", f"--save-model={folder}")
    assert f'SentenceTransformer("{folder}")' in said.out
    assert "the largest of each number of layer 2, scaled to length 1, 32 numbers, texts of up to 16 tokens" in said.out
    again = Embedder(folder)
    assert (again.pooling, again.normalize, again.sequence_length) == ("max", True, 16)
    assert "is there already" in refused(f"--save-model={folder}")


# --- mistakes


@pytest.mark.parametrize(("given", "sentence"), [
    (["--out=v.csv"], "--out v.csv is no .npy, .parquet or .jsonl file: name it so"),
    (["--text-column", "a", "b"], "--text-column names two columns, and a vector is of one text: give one column"),
    (["--words", "--tokens"], "--words and --tokens were both given: leave one out"),
    (["--words", "--out=v.npy"], "--words gives texts different numbers of vectors: give an --out that ends in "
                                 ".parquet or .jsonl"),
    (["--tokens", "--pooling=cls"], "--pooling is of whole texts: leave it or --tokens out"),
    (["--words", "--long-text=head"], "--words reads every text to its end: leave --long-text out"),
    (["--dtype=float16"], "--dtype float16 is of a .npy file: leave it out, or give an --out of that name"),
    (["--save-model=m", "--out=v.npy"], "--save-model writes a model folder and no vectors: leave the file and --out "
                                        "out"),
    (["--save-model=m", "--text-column=a"], "--save-model reads no texts: leave --text-column out"),
    (["--save-model=m", "--precision=bf16"], "--save-model reads no texts: leave --precision out"),
    (["--save-model=m", "--skip-bad-rows"], "--save-model reads no texts: leave --skip-bad-rows out"),
    (["--save-model=m", "--words"], "a model folder gives vectors of texts: leave --words out"),
    (["--layer=9"], "--layer 9 is not there: the layers of"),
    (["--sequence-length=500"], "--sequence-length 500 is not between 3 and 48, the most tokens that"),
])  # fmt: skip
def test_what_does_not_fit_together_is_one_sentence(refused, tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("heart\n")
    file = [] if any("save" in word for word in given) else ["a.txt"]
    assert refused(*file, *given).startswith(sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_pairs_are_refused(refused, write_rows):
    said = refused(write_rows([{"text_a": "heart", "text_b": "rate"}]))
    assert said.endswith("text_a, text_b: pass --text-column with one name")


def test_a_column_of_ours_and_a_file_that_is_there_are_refused(refused, write_rows, tmp_path):
    file = write_rows([{"text": "heart", "vector": 1}])
    assert refused(file) == 'the input has a column "vector" already: rename it (of .conll: give the texts in .txt)'
    (tmp_path / "v.npy").write_text("mine")
    assert re.search("is there already, and would be lost", refused(file, f"--out={tmp_path / 'v.npy'}"))
    assert (tmp_path / "v.npy").read_text() == "mine"


def test_a_column_that_no_type_of_numbers_holds_is_text(tmp_path, monkeypatch):
    """A column of hashes and of negative numbers, which no type holds, is text, wherever they stand."""
    monkeypatch.setattr(vector_files, "_BYTES_AT_ONCE", 1)
    lines = tmp_path / "a.jsonl"
    for numbers in ([-1, 2**63], [2**63, -1], [1, 2**63]):
        lines.write_text("".join(json.dumps({"n": n, "vector": [0.5]}) + "\n" for n in numbers))
        vector_files.to_parquet(lines, tmp_path / "a.parquet", ["vector"])
        expected = numbers if min(numbers) > 0 else list(map(str, numbers))
        assert pq.read_table(tmp_path / "a.parquet")["n"].to_pylist() == expected
