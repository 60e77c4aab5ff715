"""Damaged and hostile files into everything that reads files: what is wrong has to be said, never a traceback.

    python tests/fuzz/fuzz.py --minutes 10 --seed 1

Real files of each kind (and those of ../shared/data, where it is) are mutated: bytes flipped, cut, repeated, put in
from elsewhere; in JSON also values and names. Each result is read by all that reads such a file. What is raised but for
the errors that commands print as a sentence is a find: the file is kept, and its seed is printed.
"""

import argparse
import gzip
import io
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import torch
import transformers
from pyarrow import parquet
from safetensors.torch import load_file

from data_prep.durable import file_facts, write_json, write_sealed
from data_prep.errors import UserError
from data_prep.preparation import prepare
from data_prep.prepared import MANIFEST, PreparedCorpus
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.text.corpus import Corpus
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from finetune.columns import columns_of_file
from finetune.predictor import Facts, Predictor
from finetune.rows import BadRows, Columns, read_rows
from finetune.tasks.classification import Classification, label_names
from finetune.tokenizer import open_tokenizer
from finetune.vectors.embedder import Embedder
from finetune.vectors.sentence_model import SentenceModel
from model import BertConfig, BertForPreTraining, BertForSequenceClassification, ModelError, families
from pretrain.engine.stage import as_before, write_settings
from pretrain.pretraining import MAY_DIFFER
from pretrain.settings import PretrainSettings

SHARED = Path(__file__).parents[3] / "shared" / "data"
ANSWERS = (UserError, ModelError)
# Of a real file; more would only make each try slower.
_MOST_BYTES = 60_000
_WORDS = "the heart rate of a patient was measured before and after treatment with the drug".split()
# Bytes and values that break readers.
_ODD_BYTES = [b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\r", b"\n\n", b",", b"\xed\xa0\x80", b"[MASK]"]
_ODD = [None, True, -1, 0, 1 << 70, 1e308, float("nan"), "", "..", "../../etc/passwd", "\ud800", "\0", [], {}, [[]],
        {"a": 1}, "a" * 5000, [0] * 300, "auto", "/"]  # fmt: skip


def mutated(content: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """The bytes with one to eight changes."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        place = rng.randrange(len(data) + 1)
        length = rng.choice([1, 1, 2, 4, 16, 256, 4096])
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[place - 1] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = data[place : place + length] * rng.choice([1, 2, 50])
        elif kind == 4:
            start = rng.randrange(len(other) + 1)
            data[place:place] = other[start : start + length]
        elif kind == 5:
            data[place:place] = rng.choice(_ODD_BYTES)
        else:
            del data[place:]
    return bytes(data)


def mutated_json(value: object, rng: random.Random) -> object:
    """A JSON value with something in it changed, left out, added or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        changed, key = dict(value), rng.choice(list(value))
        kind = rng.randrange(5)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[str(rng.choice(["..", "", "x", "../x", 5]))] = changed.pop(key)
        else:
            changed[key] = mutated_json(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        changed, place = list(value), rng.randrange(len(value))
        changed[place] = mutated_json(value[place], rng)
        return changed if rng.random() < 0.8 else changed[:place]
    if type(value) in (int, float) and rng.random() < 0.5:
        return rng.choice([value + 1, -value, value * 1000, 0])
    return rng.choice(_ODD)


@dataclass(frozen=True)
class Target:
    """Something that reads a file: `make` writes a damaged one into an empty folder, `read` reads that folder."""

    make: Callable[[Path, random.Random], None]
    read: Callable[[Path], object]


def articles(count: int = 20) -> str:
    order = [np.random.RandomState(number).permutation(len(_WORDS)) for number in range(count * 6)]
    sentences = [" ".join(_WORDS[place] for place in places) + f" {n} ." for n, places in enumerate(order)]
    return "\n\n".join("\n".join(sentences[start : start + 6]) for start in range(0, len(sentences), 6))


class Originals:
    """Whole files of every kind, in a folder: made here, and from the example data sets where those are."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.corpora, self.rows = self._corpora(), self._rows()
        text = folder / "corpus.txt"
        text.write_text(articles(), encoding="utf-8")
        self.prepared, self.model, self.classifier = folder / "prepared", folder / "model", folder / "classifier"
        prep = PrepSettings(corpus=(str(text),))
        with ThreadPoolExecutor(1) as executor:
            made = prepare(prep, ExampleSettings(sequence_length=32), self.prepared, executor=executor)
        config = BertConfig(
            vocab_size=made.tokenizer.vocab_size,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
        )
        for path, kind in ((self.model, BertForPreTraining), (self.classifier, BertForSequenceClassification)):
            kind(config).save_pretrained(path)
            shutil.copytree(self.prepared / "tokenizer", path, dirs_exist_ok=True)
        decision = {"positive": "LABEL_1", "threshold": 0.4, "temperature": 1.5, "calibrated": True}
        Facts(("text",), 32, "head", decision=decision).write(self.classifier)
        self.pickled, self.vectors, self.other, self.run = (
            folder / name for name in ("old", "vectors", "other", "run")
        )
        shutil.copytree(self.model, self.pickled)
        torch.save(load_file(self.model / "model.safetensors"), self.pickled / "pytorch_model.bin")
        (self.pickled / "model.safetensors").unlink()
        shutil.copytree(self.model, self.vectors)
        SentenceModel().write(self.vectors, config.hidden_size)
        prompts = {"prompts": {"query": "find: "}, "default_prompt_name": None}
        write_json(self.vectors / "config_sentence_transformers.json", prompts)
        sizes = {"vocab_size": config.vocab_size, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
        transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**sizes)).save_pretrained(
            self.other
        )
        shutil.copytree(self.prepared / "tokenizer", self.other, dirs_exist_ok=True)
        self.run.mkdir()
        write_settings(PretrainSettings(), self.run)

    def _corpora(self) -> dict[str, bytes]:
        text = articles()
        rows = [{"text": block, "id": number} for number, block in enumerate(text.split("\n\n"))]
        table = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pylist(rows), table)
        csv = "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows)
        found = {
            "a.txt": text.encode(),
            "a.txt.gz": gzip.compress(text.encode()),
            "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
            "a.csv": csv.encode(),
            "a.tsv": csv.replace(",", "\t").replace("\n", " ").replace('" ', "\n").encode(),
            "a.parquet": table.getvalue().to_pybytes(),
        }
        for path in sorted(SHARED.glob("*/*")):
            if path.name.endswith((".txt.gz", ".tsv.gz", ".jsonl")):
                opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
                with opened as file:
                    found[f"{path.parent.name}-{path.name.removesuffix('.gz')}"] = file.read(_MOST_BYTES)
        return found

    def _rows(self) -> dict[str, bytes]:
        rows = [
            {"text": block.split("\n")[0], "label": f"class {n % 3}"}
            for n, block in enumerate(articles().split("\n\n"))
        ]
        table = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pylist(rows), table)
        return {
            "rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
            "rows.csv": ("text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows)).encode(),
            "rows.parquet": table.getvalue().to_pybytes(),
        }

    def targets(self) -> dict[str, Target]:
        """Everything that reads a file, by name."""
        found = {f"corpus {name}": Target(self._damaged(self.corpora, name), read_corpus) for name in self.corpora}
        found |= {
            f"prepare {name}": Target(self._damaged(self.corpora, name), prepare_corpus)
            for name in ("a.txt", "a.jsonl")
        }
        found |= {f"labels {name}": Target(self._damaged(self.rows, name), read_labels) for name in self.rows}
        for name in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "tokenizer_config.json"):
            for whole, read in ((self.model, open_model), (self.classifier, open_classifier)):
                found[f"{whole.name} {name}"] = Target(self._damaged_folder(whole, name), read)
        for whole, read, names in (
            (self.classifier, ask, ("finetune.json", "config.json")),
            (self.pickled, open_model, ("pytorch_model.bin",)),
            (self.vectors, embed, (
                "modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
                "config_sentence_transformers.json",
            )),
            (self.other, open_other, ("config.json", "model.safetensors", "tokenizer_config.json")),
            (self.run, resume, ("settings.yaml",)),
        ):  # fmt: skip
            found |= {f"{read.__name__} {name}": Target(self._damaged_folder(whole, name), read) for name in names}
        found["model header"] = Target(self._damaged_header, open_model)
        for name in (
            "prepared.json",
            "tokenizer/tokenizer.json",
            "train/data-00000-of-00001.arrow",
            "unigram_counts.npy",
        ):
            found[f"prepared {name}"] = Target(self._damaged_folder(self.prepared, name), open_prepared)
            found[f"prepared and sealed {name}"] = Target(self._damaged_and_sealed(name), open_prepared)
        return found

    def _damaged(self, originals: dict[str, bytes], name: str) -> Callable[[Path, random.Random], None]:
        def make(folder: Path, rng: random.Random) -> None:
            other = originals[rng.choice(list(originals))]
            (folder / name).write_bytes(mutated(originals[name], rng, other))

        return make

    def _damaged_folder(self, whole: Path, name: str) -> Callable[[Path, random.Random], None]:
        def make(folder: Path, rng: random.Random) -> None:
            shutil.copytree(whole, folder, dirs_exist_ok=True)
            path = folder / name
            if path.suffix == ".json" and rng.random() < 0.7:
                content = mutated_json(json.loads(path.read_text(encoding="utf-8")), rng)
                path.write_text(json.dumps(content), encoding="utf-8")
            else:
                path.write_bytes(mutated(path.read_bytes(), rng))

        return make

    def _damaged_and_sealed(self, name: str) -> Callable[[Path, random.Random], None]:
        """As somebody would do who knows how the folder is sealed."""

        def make(folder: Path, rng: random.Random) -> None:
            self._damaged_folder(self.prepared, name)(folder, rng)
            manifest = json.loads((self.prepared / MANIFEST).read_text(encoding="utf-8"))
            del manifest["blake2b"]
            if name == MANIFEST:
                changed = mutated_json(manifest, rng)
                manifest = changed if isinstance(changed, dict) else {"files": changed}
            else:
                manifest["files"] |= file_facts(folder, [name])
            try:
                write_sealed(folder / MANIFEST, manifest)
            except UnicodeEncodeError:
                write_json(folder / MANIFEST, {})

        return make

    def _damaged_header(self, folder: Path, rng: random.Random) -> None:
        """The JSON at the beginning of a safetensors file, with its length put right."""
        shutil.copytree(self.model, folder, dirs_exist_ok=True)
        content = (folder / "model.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.dumps(mutated_json(json.loads(content[8 : 8 + size]), rng)).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])


def read_corpus(folder: Path) -> None:
    corpus = Corpus([str(folder)])
    for document in corpus.documents():
        assert document.lines and all(document.lines)
        "\n".join(document.lines).encode()


def prepare_corpus(folder: Path) -> None:
    prep = PrepSettings(corpus=(str(folder),))
    with ThreadPoolExecutor(1) as executor:
        prepare(prep, ExampleSettings(sequence_length=32), folder / "out", executor=executor)


def read_labels(folder: Path) -> None:
    path = str(next(folder.iterdir()))
    columns = columns_of_file(Classification(), path, "utf-8", Columns())
    label_names(list(read_rows(Classification(), path, "utf-8", columns, BadRows(False))))


def open_model(folder: Path) -> None:
    BertForPreTraining.from_pretrained(folder)
    WordPieceTokenizer.load(folder).encode(["a text [MASK] of it"])


def open_classifier(folder: Path) -> None:
    BertForSequenceClassification.from_pretrained(folder)
    WordPieceTokenizer.load(folder)


def ask(folder: Path) -> None:
    Predictor(folder, device="cpu").predict(["a text of it"])


def embed(folder: Path) -> None:
    Embedder(folder, device="cpu").embed(["a text of it"])


def open_other(folder: Path) -> None:
    open_tokenizer(folder).encode(["a text of it"])
    families.family_of(folder).sequence_classification.from_pretrained(folder)


def resume(folder: Path) -> None:
    as_before(PretrainSettings(), folder, MAY_DIFFER)


def open_prepared(folder: Path) -> None:
    corpus = PreparedCorpus(folder)
    for shard in [*corpus.train, *corpus.validation]:
        assert shard.ids.max(initial=0) < corpus.tokenizer.vocab_size
    assert corpus.unigram_counts.shape == (corpus.tokenizer.vocab_size,)
    assert corpus.next_sentence in (True, False)


def attempt(target: Target, seed: str, folder: Path) -> Exception | None:
    """Make a damaged file and read it; returns what should not have been raised."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target.make(folder, random.Random(seed))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            target.read(folder)
    except ANSWERS as answer:
        return None if "\n" not in str(answer) else ValueError(f"more than a line: {answer}")
    except Exception as error:
        return error
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="", help="targets whose names hold this")
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz_finds"), help="where files are kept that were answered wrongly"
    )
    given = parser.parse_args()
    end, tries, finds = time.monotonic() + 60 * given.minutes, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        whole.mkdir()
        targets = {name: target for name, target in Originals(whole).targets().items() if given.only in name}
        while time.monotonic() < end:
            for name, target in targets.items():
                seed = f"{given.seed} {tries} {name}"
                error = attempt(target, seed, Path(folder, "try"))
                tries += 1
                if error:
                    finds += 1
                    shutil.copytree(Path(folder, "try"), given.keep / f"{finds:03}", dirs_exist_ok=True)
                    print(f"\n{seed!r}, kept in {given.keep / f'{finds:03}'}:", file=sys.stderr)
                    traceback.print_exception(error)
    print(f"{tries:,} files, {len(targets)} kinds, {finds} without an answer")
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
