import json
import random
import re

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.dry_run import SAMPLE_BYTES
from data_prep.preparation import prepare
from data_prep.run import main
from data_prep.sample import Whole, prepare_sample
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.work_folder import WorkFolder

WORDS = "the patient was given a low dose of the drug after two weeks and the liver was normal in all others".split()
SIZE = 20_000


def document(sentences, seed):
    rng = random.Random(seed)
    return "\n".join(" ".join(rng.choices(WORDS, k=10)) + " ." for _ in range(sentences))


def folder(path, texts):
    """A file a document."""
    path.mkdir()
    for number, text in enumerate(texts):
        (path / f"{number:03d}.txt").write_text(text + "\n")
    return str(path)


def sample(tmp_path, texts, **more):
    corpus = folder(tmp_path / "corpus", texts)
    prep = PrepSettings(corpus=(corpus,), document="file", workers=1, **more)
    return prepare_sample(prep, ExampleSettings(sequence_length=48), tmp_path / "out", SIZE, tmp_path / "whole")


def num_words(texts):
    return sum(len(text.split()) for text in texts)


def test_a_first_document_longer_than_the_sample_leaves_next_sentences_on(tmp_path):
    texts = [document(2000, 0), *(document(60, seed) for seed in range(1, 200))]
    prepared, whole = sample(tmp_path, texts)
    assert prepared.next_sentence
    assert prepared.manifest["train"]["documents"] >= 2
    # What stands for entries that the whole corpus will have is never drawn as a random word.
    tokenizer = prepared.tokenizer
    stand_ins = [entry.startswith("[unused") for entry in tokenizer.vocabulary]
    assert sum(stand_ins) > 1000 and not tokenizer.is_ordinary[stand_ins].any()
    # Every word is in the vocabulary.
    assert whole.tokens(prepared) == pytest.approx(num_words(texts), rel=0.1)


def test_of_a_long_validation_corpus_only_the_beginning_is_read(tmp_path):
    held_out = [document(60, seed) for seed in range(1000, 1100)]
    texts = [document(60, seed) for seed in range(100)]
    options = {"validation_corpus": (folder(tmp_path / "validation", held_out),)}
    prepared, whole = sample(tmp_path, texts, **options)
    assert 0 < prepared.manifest["validation"]["tokens"] < 0.2 * num_words(held_out)
    for part, there in (("train", texts), ("validation", held_out)):
        read = prepared.manifest[part]["tokens"]
        assert getattr(whole, part) * read == pytest.approx(num_words(there), rel=0.1), part


def test_a_sample_of_a_few_long_rows_is_known_to_be_a_part(tmp_path):
    texts = [document(300, seed) for seed in range(100)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "rows.parquet")
    prep = PrepSettings(corpus=(str(tmp_path / "rows.parquet"),), workers=1)
    prepared, whole = prepare_sample(
        prep, ExampleSettings(sequence_length=48), tmp_path / "out", SIZE, tmp_path / "whole"
    )
    assert prepared.manifest["train"]["documents"] < 64
    assert whole.tokens(prepared) == pytest.approx(num_words(texts), rel=0.1)


def test_a_corpus_smaller_than_the_sample_is_all_of_it(tmp_path):
    prepared, whole = sample(tmp_path, [document(20, seed) for seed in range(6)])
    assert whole == Whole()
    assert prepared.manifest["train"]["documents"] + prepared.manifest["validation"]["documents"] == 6


@pytest.mark.slow
def test_the_plan_of_a_preparation_is_that_of_the_whole(tmp_path, capsys, monkeypatch):
    worked_with, remove = [], WorkFolder.remove

    def watched(work):
        worked_with.append(bytes_of(work.path))
        remove(work)

    texts = [document(700, seed) for seed in range(120)]
    assert sum(map(len, texts)) > 2 * SAMPLE_BYTES
    corpus = folder(tmp_path / "corpus", texts)
    given = [f"--corpus={corpus}", "--sequence-length=48", "--static-masks=1", "--workers=1"]
    assert main([*given, f"--out={tmp_path / 'out'}", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert len(re.findall(r"^Example \d \(.*\): \[CLS\]", printed, re.MULTILINE)) == 3
    assert "A document is a file" in printed and "Only" not in printed
    monkeypatch.setattr(WorkFolder, "remove", watched)
    assert main([*given, f"--out={tmp_path / 'out'}"]) == 0
    facts = json.loads((tmp_path / "out" / "prep_report.json").read_text())
    tokens = int(re.search(r"text .* MB, ([\d,]+) tokens", printed)[1].replace(",", ""))
    assert tokens == pytest.approx(facts["train"]["tokens"] + facts["validation"]["tokens"], rel=0.1)
    found = re.search(r"disk +about ([\d,]+) MB, and ([\d,]+) MB more", printed).groups()
    disk, meanwhile = (int(number.replace(",", "")) * 1e6 for number in found)
    assert disk == pytest.approx(bytes_of(tmp_path / "out"), rel=0.2)
    assert meanwhile == pytest.approx(max(worked_with), rel=0.2)


def test_a_dry_run_refuses_what_the_preparation_refuses_and_says_what_is_there(tmp_path, capsys):
    corpus, out = folder(tmp_path / "corpus", [document(60, seed) for seed in range(40)]), tmp_path / "out"
    given = [f"--corpus={corpus}", "--sequence-length=48", "--workers=1", f"--out={out}"]
    assert main([*given, "--static-masks=1", "--show-text=no"]) == 0
    there = sorted(out.rglob("*"))
    capsys.readouterr()
    for more in (["--no-lowercase"], ["--static-masks=2"], [f"--tokenizer={out / 'tokenizer'}"], [f"--out={corpus}"],
                 [f"--out={corpus}/000.txt"]):  # fmt: skip
        found = []
        for dry in ([], ["--dry-run"]):
            assert main([*given, "--static-masks=1", *more, *dry]) == 2
            found.append(capsys.readouterr().err)
        assert found[0] == found[1] and "--out" in found[0]
    assert main([*given, "--static-masks=1", "--dry-run"]) == 0
    assert f"{out} holds a corpus prepared with these options" in capsys.readouterr().out
    assert sorted(out.rglob("*")) == there


def test_the_plan_of_many_short_rows_counts_what_they_are_compared_by(tmp_path, capsys):
    texts = [document(3, seed) for seed in range(24_000)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text, "n": 5}) + "\n" for text in texts))
    assert sum(map(len, texts)) > 1.5 * SAMPLE_BYTES
    given = [f"--corpus={tmp_path / 'rows.jsonl'}", "--sequence-length=48", "--workers=1"]
    assert main([*given, f"--out={tmp_path / 'out'}", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    tokens = int(re.search(r"text .* MB, ([\d,]+) tokens", printed)[1].replace(",", ""))
    assert tokens == pytest.approx(num_words(texts), rel=0.05)
    found = re.search(r"disk +about ([\d,]+) MB, and ([\d,]+) MB more", printed).groups()
    assert sum(int(number.replace(",", "")) * 1e6 for number in found) > 252 * len(texts)


def test_a_beginning_of_copies_is_told_from_a_whole_of_copies(tmp_path, capsys):
    rows = [" ".join(WORDS * 6)] * 6_000 + [document(6, seed) for seed in range(3_000)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    given = [f"--corpus={tmp_path / 'rows.jsonl'}", f"--out={tmp_path / 'out'}", "--workers=1", "--dry-run"]
    assert main(given) == 2
    assert "is all there is but copies in the beginning, which is what a dry run reads" in capsys.readouterr().err


def bytes_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_sample_of_one_file_is_split_whatever_is_to_stay_together(tmp_path):
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        text = "\n\n".join(document(60, 100 * number + seed) for seed in range(100))
        (tmp_path / "corpus" / f"{number}.txt").write_text(text)
    prep = PrepSettings(corpus=(str(tmp_path / "corpus"),), document="blank-line", group_by="file", workers=1)
    prepared, whole = prepare_sample(
        prep, ExampleSettings(sequence_length=48), tmp_path / "out", SIZE, tmp_path / "whole"
    )
    assert prepared.manifest["validation"]["documents"] > 0 and whole.train > 2


def test_a_sample_of_one_group_is_split_too(tmp_path):
    rows = [json.dumps({"text": document(60, seed), "site": seed // 60}) for seed in range(120)]
    for number in range(12):
        (tmp_path / f"{number:02}.jsonl").write_text("\n".join(rows[10 * number : 10 * number + 10]))
    prep = PrepSettings(corpus=(str(tmp_path / "*.jsonl"),), group_column="site", workers=1)
    prepared, whole = prepare_sample(
        prep, ExampleSettings(sequence_length=48), tmp_path / "out", SIZE, tmp_path / "whole"
    )
    assert prepared.manifest["validation"]["tokens"] > 0 and whole.train > 2


@pytest.mark.slow
def test_what_a_sample_says_of_a_much_larger_corpus(tmp_path):
    """A larger share of a small corpus is held out, and its vocabulary does not grow with the text."""
    texts = [document(60, seed) for seed in range(400)]
    given = [document(60, seed) for seed in range(1000, 1010)]
    for name, validation in (("alone", ()), ("beside", (folder(tmp_path / "given", given),))):
        corpus = folder(tmp_path / name, texts)
        prep = PrepSettings(corpus=(corpus,), document="file", validation_corpus=validation, workers=1)
        examples = ExampleSettings(sequence_length=48)
        found, whole = prepare_sample(prep, examples, tmp_path / f"{name}-sample", 5 * SIZE, tmp_path / "whole")
        expected = prepare(prep, examples, tmp_path / f"{name}-whole")
        assert whole.train > 8
        for part in ("train", "validation"):
            tokens = getattr(whole, part) * found.manifest[part]["tokens"]
            assert tokens == pytest.approx(expected.manifest[part]["tokens"], rel=0.15), (name, part)
        # The sample has stand-ins for the entries of a larger vocabulary, which this text does not have.
        sizes = [grown(each) for each in (found, expected)]
        fixed = sum(path.stat().st_size for path in found.folder.rglob("*") if path.is_file()) - sizes[0]
        assert whole.bytes_on_disk(found) - fixed == pytest.approx(sizes[1], rel=0.2), name


def grown(prepared):
    """Bytes of what grows with the text."""
    folders = [prepared.folder / f"{part}{more}" for part in ("train", "validation") for more in ("", "_pairs")]
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
