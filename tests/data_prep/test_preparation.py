import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from data_prep import preparation
from data_prep.errors import PrepError
from data_prep.examples import static_copies as static
from data_prep.examples.packing import HELD_OUT_SEED
from data_prep.examples.pairs import pairs
from data_prep.preparation import Preparation, prepare
from data_prep.prepared import PreparedCorpus
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.text.corpus import Document
from data_prep.vocabulary.make import tokenizer_of_sample
from data_prep.vocabulary.wordpiece import WordPieceTokenizer

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
EXAMPLES = ExampleSettings(sequence_length=32)


def sentence(rng):
    return " ".join("".join(rng.choices("abcdefgh", k=rng.randint(1, 5))) for _ in range(rng.randint(3, 12))) + " ."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files of documents between blank lines, some of them twice."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("corpus")
    documents = ["\n".join(sentence(rng) for _ in range(rng.randint(2, 30))) for _ in range(300)]
    (folder / "a.txt").write_text("\n\n".join(documents[:200]) + "\n")
    (folder / "b.txt").write_text("\n\n".join(documents[190:]) + "\n")
    return folder


def digests(out):
    """Every byte of a prepared corpus but its log."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "prep.log"]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def settings(corpus, **changes):
    return PrepSettings(corpus=(str(corpus),), **{"vocab_size": 256, "workers": 1} | changes)


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    return prepare(settings(corpus), EXAMPLES, tmp_path_factory.mktemp("out") / "prepared")


@pytest.mark.parametrize(("name", "is_ours"), [(".DS_Store", True), ("letter.docx", False)])
def test_only_an_empty_folder_is_prepared_into(name, is_ours, corpus, tmp_path):
    """What Finder leaves in a folder is no content."""
    (tmp_path / name).touch()
    if is_ours:
        assert prepare(settings(corpus), EXAMPLES, tmp_path).folder == tmp_path
    else:
        with pytest.raises(PrepError, match="is not empty and not a prepared corpus"):
            prepare(settings(corpus), EXAMPLES, tmp_path)
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_number_of_workers_changes_no_byte(prepared, corpus, tmp_path, workers, monkeypatch):
    # Blocks small enough that every worker has several.
    monkeypatch.setattr("data_prep.preparation.cut_blocks", small_blocks)
    monkeypatch.setattr("data_prep.preparation.BLOCK_BYTES", 0)
    prepare(settings(corpus, workers=workers), EXAMPLES, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(prepared.folder)


def small_blocks(documents):
    from data_prep.encode import cut_blocks

    return cut_blocks(documents, block_bytes=2_000)


def test_another_process_with_another_hash_seed_writes_the_same_bytes(prepared, corpus, tmp_path):
    command = [sys.executable, "-m", "data_prep.run", f"--corpus={corpus}", "--vocab-size=256", "--workers=2"]
    command += ["--sequence-length=32", f"--out={tmp_path / 'out'}"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True)
    assert digests(tmp_path / "out") == digests(prepared.folder)


def test_what_is_stored_is_what_the_documents_say(prepared, corpus):
    texts = [block for name in "ab" for block in (corpus / f"{name}.txt").read_text().strip().split("\n\n")]
    expected = {tuple(text.split("\n")) for text in texts}
    tokenizer, found = prepared.tokenizer, []
    for shard in prepared.train + prepared.validation:
        for start, end in zip(shard.document_starts[:-1], shard.document_starts[1:], strict=True):
            bounds = shard.sentence_starts[start : end + 1]
            found.append([shard.ids[a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:], strict=True)])
    encoded = [tokenizer.encode(list(lines)) for lines in expected]
    assert sorted(found) == sorted(encoded)
    assert prepared.manifest["train"]["documents"] + prepared.manifest["validation"]["documents"] == len(expected)


def test_the_report_counts_the_duplicates_and_shows_examples(prepared):
    report = json.loads((prepared.folder / "prep_report.json").read_text())
    assert report["corpus"]["duplicates"] == 10
    assert len(report["examples"]) == 3 and all("[MASK]" in e["input"] for e in report["examples"])
    assert report["pairs"]["next"] == report["pairs"]["random"] > 0
    assert sum(report["pairs"]["length_histogram"].values()) == report["pairs"]["examples"]
    assert sum(report["pairs"]["unlabelled_because"].values()) == report["pairs"]["unlabelled"] > 0
    page = (prepared.folder / "prep_report.md").read_text()
    assert "A document is" in page and "A line is" in page and "| exact duplicates dropped | 10 |" in page


def test_stored_pairs_are_those_of_the_first_epoch(prepared):
    from datasets import load_from_disk

    from data_prep.examples.pairs import pairs

    stored = load_from_disk(str(prepared.folder / "train_pairs")).with_format("numpy")
    rows = pairs(prepared.train[0], 32, EXAMPLES.seed, 0, prepared.tokenizer.starts_word)
    for name, column in rows.columns().items():
        assert np.array_equal(stored[name], column)
    report = json.loads((prepared.folder / "prep_report.json").read_text())
    labelled = (stored["a_length"][:] + stored["b_length"][:])[stored["label"][:] >= 0].sum()
    assert report["pairs"]["labelled_tokens"] == pytest.approx(labelled / report["train"]["tokens"])


def test_the_folder_may_be_moved(prepared, tmp_path):
    shutil.copytree(prepared.folder, tmp_path / "elsewhere")
    moved = PreparedCorpus(tmp_path / "elsewhere")
    assert moved.digest == prepared.digest
    for name, content in digests(moved.folder).items():
        assert str(prepared.folder.parent).encode() not in content, name


def test_a_validation_corpus_is_held_out_whole_and_leaves_training(corpus, tmp_path):
    found = prepare(settings(corpus / "a.txt", validation_corpus=(str(corpus / "b.txt"),)), EXAMPLES, tmp_path / "out")
    assert found.manifest["validation"]["documents"] == 110
    assert found.manifest["train"]["documents"] == 190


@pytest.mark.parametrize("line", ["sentence", "paragraph", "wrapped"])
def test_a_held_out_text_is_found_in_training_however_its_lines_are_cut(line, tmp_path):
    """Of each other text the training corpus is found to be of paragraphs, the validation corpus alone of sentences."""
    rng = random.Random(3)
    documents = [[f"{sentence(rng)[:-1].strip().capitalize()}." for _ in range(12)] for _ in range(100)]
    paragraphs = [f"{' '.join(lines[:6])}\n{' '.join(lines[6:])}" for lines in documents]
    cut = {
        "sentence": ["\n".join(lines) for lines in documents],
        "paragraph": paragraphs,
        "wrapped": [textwrap.fill(" ".join(lines), 60) for lines in documents],
    }
    (tmp_path / "train.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "held.txt").write_text("\n\n".join(cut[line][:40]))
    chosen = settings(tmp_path / "train.txt", validation_corpus=(str(tmp_path / "held.txt"),), vocab_size="auto")
    found = prepare(chosen, EXAMPLES, tmp_path / "out")
    assert (found.manifest["train"]["documents"], found.manifest["validation"]["documents"]) == (60, 40)
    held_out, learned = ({tuple(ids) for ids in sentences_of(part)} for part in (found.validation, found.train))
    # Short ones come twice by chance.
    assert not {ids for ids in held_out & learned if len(ids) > 12}
    said = (found.folder / "prep.log").read_text()
    assert "A document is a block between blank lines, as in the training corpus." in said
    assert "A line is a paragraph, as in the training corpus." in said


def test_a_corpus_that_is_held_out_whole_leaves_nothing_to_learn_from(corpus, tmp_path):
    both = str(corpus / "a.txt")
    with pytest.raises(PrepError, match=r"every document of .*a\.txt is also in .*a\.txt,.*--validation-corpus"):
        prepare(settings(both, validation_corpus=(both,)), EXAMPLES, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_setting_that_acts_on_one_of_two_corpora_is_taken(corpus, tmp_path):
    rows = tmp_path / "held.jsonl"
    rows.write_text("".join(json.dumps({"text": f"a b c {n} .\nd e f ."}) + "\n" for n in range(9)) + "no row\n")
    chosen = settings(corpus / "a.txt", validation_corpus=(str(rows),), skip_bad_rows=True, encoding="latin-1")
    found = prepare(chosen, EXAMPLES, tmp_path / "out")
    assert found.manifest["validation"]["documents"] == 9


def test_of_options_each_acts_on_one_of_the_two_corpora(corpus, tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = dict.fromkeys(filter(None, (corpus / "b.txt").read_text().split("\n")))
    shown = [json.dumps({"title": "t", "note": line}) for line in lines]
    rows.write_text("\n".join(shown + ["{}"] * 3))
    given = {"text_column": "note", "document": "line", "validation_corpus": (str(rows),)}
    found = prepare(settings(corpus / "a.txt", **given), EXAMPLES, tmp_path / "out")
    assert found.manifest["validation"]["documents"] == len(shown)
    # What is wrong with the validation corpus is counted too.
    facts = json.loads((tmp_path / "out" / "prep_report.json").read_text())["corpus"]
    assert facts["bad_rows"] == len(facts["bad_rows_listed"]) == 3 and facts["rows"] == len(shown) + 3
    other = settings(rows, **given | {"validation_corpus": (str(corpus / "a.txt"),)})
    prepare(other, EXAMPLES, tmp_path / "other")
    facts = json.loads((tmp_path / "other" / "prep_report.json").read_text())["corpus"]
    assert facts["bad_rows"] == 3 and any("A document is a row" in sentence for sentence in facts["rules"])


def test_held_out_text_in_other_characters_is_said(corpus, tmp_path):
    (tmp_path / "held.txt").write_text("심장은 뛴다 .\nthe rate of the patient\n\nεγώ the\n")
    found = prepare(
        settings(corpus / "a.txt", validation_corpus=(str(tmp_path / "held.txt"),)), EXAMPLES, tmp_path / "o"
    )
    ids = np.concatenate([shard.ids for shard in found.validation])
    text = json.loads((found.folder / "prep_report.json").read_text())["text"]
    assert text["held_out_unk_rate"] == (ids == found.tokenizer.unk_id).mean() > 0.1 > text["unk_rate"]
    share = f"{text['held_out_unk_rate']:.0%}"
    assert f"{share} of the held-out tokens are [UNK]" in (found.folder / "prep_report.md").read_text()


@pytest.mark.parametrize("begins_with", ["short", "long"])
def test_of_a_single_document_that_is_cut_the_share_is_one_of_its_text(tmp_path, begins_with):
    """Whatever the length of the sentences at its end."""
    rng = random.Random(3)
    lines = {"short": [sentence(rng) for _ in range(600)],
             "long": [" ".join(sentence(rng) for _ in range(12)) for _ in range(200)]}  # fmt: skip
    other = {"short": "long", "long": "short"}[begins_with]
    (tmp_path / "one.txt").write_text("\n".join(lines[begins_with] + lines[other]))
    found = prepare(settings(tmp_path / "one.txt", document="file", line="sentence"), EXAMPLES, tmp_path / "out")
    train, held = (sum(len(shard.ids) for shard in part) for part in (found.train, found.validation))
    assert held / (train + held) == pytest.approx(0.2, abs=0.02)


def test_words_are_counted_by_groups_beside_a_validation_corpus_without_them(tmp_path):
    rng = random.Random(2)
    rows = [{"text": f"{sentence(rng)} {sentence(rng)}", "patient": f"p{number % 30}"} for number in range(150)]
    rows += [{"text": f"{sentence(rng)} quixbert {sentence(rng)}", "patient": "p1"} for _ in range(60)]
    rows[0]["patient"] = ""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held.txt").write_text("\n\n".join(f"{sentence(rng)}\n{sentence(rng)}" for _ in range(40)))
    given = {"validation_corpus": (str(tmp_path / "held.txt"),), "min_documents": 2}
    by_document = prepare(settings(tmp_path / "rows.jsonl", **given), EXAMPLES, tmp_path / "by_document")
    assert "quixbert" in by_document.tokenizer.vocabulary
    given["group_column"] = "patient"
    by_group = prepare(settings(tmp_path / "rows.jsonl", **given), EXAMPLES, tmp_path / "by_group")
    assert not [entry for entry in by_group.tokenizer.vocabulary if "quix" in entry]
    facts = json.loads((tmp_path / "by_group" / "prep_report.json").read_text())["corpus"]
    assert facts["documents_without_group"] == 1 and facts["groups"] == {"train": 31}
    with pytest.raises(PrepError, match="acts on --min-documents alone: give that, too"):
        settings(tmp_path / "rows.jsonl", **given | {"min_documents": 1})


def test_files_that_are_none_cannot_be_kept_together(tmp_path):
    with pytest.raises(PrepError, match="--group-by file has nothing to act on: builtin is no file"):
        prepare(PrepSettings(corpus=("builtin",), group_by="file"), EXAMPLES, tmp_path / "out")


def test_a_validation_corpus_without_a_word_is_named(corpus, tmp_path):
    (tmp_path / "held.txt").write_text("\u200b\ufffd\n")
    chosen = settings(corpus / "a.txt", validation_corpus=(str(tmp_path / "held.txt"),))
    with pytest.raises(PrepError, match=r"nothing is left to evaluate on in .*held\.txt"):
        prepare(chosen, EXAMPLES, tmp_path / "out")


def test_groups_stay_together(tmp_path):
    rng = random.Random(1)
    rows = [{"text": sentence(rng) + " " + sentence(rng), "patient": f"p{i % 40}"} for i in range(400)]
    # Near duplicates join six groups, which are counted as six.
    letter = " ".join(sentence(rng) for _ in range(30))
    rows += [{"text": f"{letter} {i}", "patient": f"p{i}"} for i in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = prepare(settings(path, group_column="patient", vocab_size="auto"), EXAMPLES, tmp_path / "out")
    held_out = {found.tokenizer.decode(ids) for ids in sentences_of(found.validation)}
    of = {}
    for row in rows:
        ids = found.tokenizer.encode([row["text"]])[0]
        of.setdefault(row["patient"], set()).add(any(found.tokenizer.decode(ids).startswith(s) for s in held_out))
    assert all(len(sides) == 1 for sides in of.values())
    held = sum(True in sides for sides in of.values())
    assert 0 < held < 40
    facts = json.loads((found.folder / "prep_report.json").read_text())
    assert facts["corpus"]["groups"] == {"train": 40 - held, "validation": held}
    report = (found.folder / "prep_report.md").read_text()
    assert f"| groups, validation | {held} |" in report
    assert "| documents that share two thirds of their text with another | 6 |" in report


def sentences_of(shards):
    for shard in shards:
        for start, end in zip(shard.sentence_starts[:-1], shard.sentence_starts[1:], strict=True):
            yield shard.ids[start:end].tolist()


def test_a_given_tokenizer_is_used_as_it_is(prepared, corpus, tmp_path):
    given = tmp_path / "tokenizer"
    WordPieceTokenizer(prepared.tokenizer.vocabulary, lowercase=False, strip_accents=False).save(given, 512)
    found = prepare(settings(corpus, tokenizer=str(given), vocab_size="auto"), EXAMPLES, tmp_path / "out")
    assert found.tokenizer.vocabulary == prepared.tokenizer.vocabulary
    assert not found.tokenizer.lowercase


def test_static_copies_are_written_when_asked_for(corpus, tmp_path):
    from datasets import load_from_disk

    found = prepare(settings(corpus), EXAMPLES, tmp_path / "out", static_masks=2)
    copies, unlabelled = (load_from_disk(str(found.folder / name)) for name in static.FOLDERS)
    report = json.loads((found.folder / "prep_report.json").read_text())
    assert report["static"] == {"static_masks": len(copies), "static_masks_unlabelled": len(unlabelled)}
    assert len(copies) + len(unlabelled) == pytest.approx(2 * report["pairs"]["examples"], rel=0.1)
    assert len(unlabelled) == pytest.approx(2 * report["pairs"]["unlabelled"], rel=0.2)
    page = (found.folder / "prep_report.md").read_text()
    assert f"| rows of static_masks_unlabelled/ | {len(unlabelled):,} |" in page


def test_nothing_is_written_outside_the_folder(corpus, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    prepare(settings(corpus), EXAMPLES, tmp_path / "out")
    assert not list((tmp_path / "here").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"here", "out"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "document", "line", "characters"),
    [
        ("nsmc-ko/validation.jsonl.gz", "A document is a row", "A line is a", "가힣"),
        ("english-novels-a/train.txt.gz", "A document is a block between", "A line is a paragraph", "àÿ"),
    ],
)
def test_real_corpora_keep_their_letters_and_name_their_rules(name, document, line, characters, tmp_path):
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is not on this machine")
    # A million characters at the end, where the novels have accents.
    path = tmp_path / Path(name).stem
    with gzip.open(SHARED / name, "rt", encoding="utf-8") as file:
        path.write_text(file.read()[-1_000_000:].partition("\n")[2], encoding="utf-8")
    found = prepare(PrepSettings(corpus=(str(path),), workers=1), ExampleSettings(), tmp_path / "out")
    page = (found.folder / "prep_report.md").read_text()
    assert document in page and line in page
    vocabulary = "".join(found.tokenizer.vocabulary)
    low, high = characters[0], characters[-1]
    assert any(low <= letter <= high for letter in vocabulary)
    # Letters of their own, not loose Hangul letters or accents.
    assert not any("\u1100" <= letter <= "\u11ff" or "\u0300" <= letter <= "\u036f" for letter in vocabulary)
    report = json.loads((found.folder / "prep_report.json").read_text())
    assert report["text"]["unk_rate"] < 0.01


def test_what_another_process_has_just_finished_is_taken_for_its_own_alone(corpus, tmp_path, monkeypatch):
    """It ends between the look at the folder and the lock."""
    settings, lock = PrepSettings(corpus=(str(corpus),), vocab_size=128, workers=1), preparation.FileLock

    def late(length):
        def entered(*given, **named):
            monkeypatch.setattr(preparation, "FileLock", lock)
            prepare(settings, ExampleSettings(sequence_length=length), tmp_path / "out")
            return lock(*given, **named)

        monkeypatch.setattr(preparation, "FileLock", entered)

    late(32)
    found = prepare(settings, ExampleSettings(sequence_length=32), tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    late(32)
    with pytest.raises(PrepError, match="holds a corpus prepared otherwise .sequence_length: 32 before, 64 now"):
        prepare(settings, ExampleSettings(sequence_length=64), tmp_path / "out")
    assert PreparedCorpus(tmp_path / "out").digest == found.digest


def test_the_vocabulary_of_a_plan_is_that_of_the_whole_corpus():
    """The vocabulary of a plan is as large as that of the whole corpus will be."""
    documents = [Document(["some words of a text " * 50] * 50, "a.txt:1", None)]
    for share, size in ((1.0, 8_192), (0.002, 16_384), (0.0002, 30_528)):
        found = tokenizer_of_sample(PrepSettings(corpus=("a.txt",)), None, lambda: documents, share)
        assert found.vocab_size == size


def test_held_out_pairs_are_the_same_whatever_the_seed(tmp_path, random_corpus):
    """Held-out pairs are the same whatever the seed, and the share of copies is one of the held-out tokens."""
    same = "this letter was written by the same hand as all the others that lie in the drawer of the desk ."
    path = tmp_path / "letters.txt"
    path.write_text(random_corpus.read_text().replace("\n\n", f"\n{same}\n\n"))
    settings = PrepSettings(corpus=(str(path),), workers=1)
    prepared = prepare(settings, ExampleSettings(sequence_length=32, seed=7), tmp_path / "out")
    (stored,) = prepared.pairs("validation")
    expected = pairs(prepared.validation[0], 32, HELD_OUT_SEED, 0, prepared.tokenizer.starts_word).columns()
    assert all(np.array_equal(stored[name], column) for name, column in expected.items())
    report = json.loads((prepared.folder / "prep_report.json").read_text())
    copied = report["copied"]
    assert copied["tokens"] > 0
    assert copied["share"] == pytest.approx(copied["tokens"] / report["validation"]["tokens"])


def test_of_a_document_that_is_cut_the_share_that_was_decided_is_held_out(tmp_path):
    lines = [f"Sentence {number}." for number in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    settings = PrepSettings(corpus=(str(tmp_path / "a.txt"),), language="en")
    preparation = Preparation(settings, ExampleSettings(), tmp_path / "out", static_masks=0)
    head, tail = preparation._cut(Document(lines, "a.txt:1", None), 0.2)
    assert head.lines == lines[:40] and tail.lines == lines[40:]
