"""What the script of the BERT release makes of a text, and what ours does: labels, lengths, tokens used, speed.

    python benchmarks/original_script.py --original bert --corpus articles.txt.gz --tokenizer prepared/tokenizer

`--original` is a folder with create_pretraining_data.py and tokenization.py of google-research/bert, which are run as
they are; of TensorFlow, which they use to read options and to write records, a stand-in of a few lines is made that
writes plain integers. Takes about two minutes for 10 MB.

Both get the same sentences, one a line, and the same vocabulary, and make one copy of the examples (--dupe_factor=1;
the release made 10 by default): one epoch. Where tokens go is followed in a run of its own, in which each is marked
with its place. The label is guessed from the lengths of A, of B and of both, by logistic regression and by gradient
boosting, learned on half of the documents and scored on the others: the better one's balanced accuracy. Speed and
memory are those of the whole command, one process: the script's, and `python -m data_prep.run --workers 1`, which
besides checks the text, removes duplicates and writes a report, but draws masks only in training.
"""

import argparse
import importlib
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from data_preparation import MB, Text, num_bytes, prepared
from process_tree import measured
from table import DEFAULT_FOLDER, Table, code, machine, run

# What the script calls of it. A record is the integers of its features, end to end.
TENSORFLOW = """
import array, glob, sys, types

class Values:
    def __init__(self, value): self.value = value

class Feature:
    def __init__(self, int64_list=None, float_list=None):
        self.int64_list, self.float_list = int64_list or Values([]), float_list or Values([])

class Features:
    def __init__(self, feature): self.feature = feature

class Example:
    def __init__(self, features): self.features = features.feature
    def SerializeToString(self):
        columns = self.features.values()
        return b"".join(array.array("i", map(int, c.int64_list.value or c.float_list.value)).tobytes() for c in columns)

class TFRecordWriter:
    def __init__(self, path): self.file = open(path, "wb")
    def write(self, record): self.file.write(record)
    def close(self): self.file.close()

class Flags:
    FLAGS = types.SimpleNamespace()
    def mark_flag_as_required(self, name): pass
    def define(self, kind):
        given = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
        def add(name, default, text):
            setattr(self.FLAGS, name, kind(given[name]) if name in given else default)
        return add

flags = Flags()
flags.DEFINE_string, flags.DEFINE_integer = flags.define(str), flags.define(int)
flags.DEFINE_float, flags.DEFINE_bool = flags.define(float), flags.define(lambda text: text.lower() == "true")
nothing = lambda *given: None
logging = types.SimpleNamespace(INFO=0, set_verbosity=nothing, info=nothing)
gfile = types.SimpleNamespace(GFile=lambda path, mode: open(path, mode, encoding="utf-8"), Glob=glob.glob)
python_io = types.SimpleNamespace(TFRecordWriter=TFRecordWriter)
train = types.SimpleNamespace(Example=Example, Features=Features, Feature=Feature, Int64List=Values, FloatList=Values)
app = types.SimpleNamespace(run=lambda: sys.modules["__main__"].main(None))
"""
SIX = "PY2, PY3 = False, True\n"
LENGTH, SHORT, MASKED, MOST_MASKED, SEED = 128, 0.1, 0.15, 20, 12345
COLUMNS = {
    "": "",
    "examples": "examples",
    "full": "full",
    "labelled": "labelled",
    "labelled_tokens": "tokens in labelled",
    "random": "labelled random",
    "guessed": "label guessed from lengths",
    "same": "random B of the same document",
    "never": "tokens never used",
    "once": "once",
    "often": "several times",
    "rate": "MB/s",
    "memory": "peak memory, GB",
}


@dataclass(frozen=True)
class Made:
    """Examples of a text: lengths of A and B, labels, documents of A and of B [N], and uses of each token [T]."""

    a: np.ndarray
    b: np.ndarray
    label: np.ndarray
    document: np.ndarray
    b_document: np.ndarray
    uses: np.ndarray

    def row(self) -> dict:
        """Their numbers as the table has them."""
        is_labelled, tokens = self.label >= 0, self.a + self.b
        is_random = self.label == 1
        return {
            "examples": f"{len(self.label):,}",
            "full": f"{(tokens + 2 + (self.b > 0)).mean() / LENGTH:.0%}",
            "labelled": f"{is_labelled.mean():.1%}",
            "labelled_tokens": f"{tokens[is_labelled].sum() / tokens.sum():.1%}",
            "random": f"{is_random.sum() / is_labelled.sum():.1%}",
            "guessed": f"{self.guessed():.3f}",
            "same": f"{(self.document == self.b_document)[is_random].sum():,}",
            "never": f"{(self.uses == 0).mean():.1%}",
            "once": f"{(self.uses == 1).mean():.1%}",
            "often": f"{(self.uses > 1).mean():.1%}",
        }

    def guessed(self) -> float:
        """Balanced accuracy of the label, guessed from lengths for the second half of the documents."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import balanced_accuracy_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        features = np.stack([self.a, self.b, self.a + self.b], axis=1)
        # A document is in one half by its number: halves of a text need not be alike.
        learn, score = ((self.document % 2 == part) & (self.label >= 0) for part in (0, 1))
        regression = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
        boosting = HistGradientBoostingClassifier(class_weight="balanced", random_state=0)
        guesses = [
            model.fit(features[learn], self.label[learn]).predict(features[score]) for model in (regression, boosting)
        ]
        return max(balanced_accuracy_score(self.label[score], guess) for guess in guesses)


class Token(str):
    """A token that knows its place in the text."""

    __slots__ = ("place",)


class Marking:
    """A tokenizer for the original whose tokens know their places."""

    def __init__(self, tokenizer):
        self.tokenizer, self.places = tokenizer, 0
        self.vocab = {entry: index for index, entry in enumerate(tokenizer.vocabulary)}

    def tokenize(self, line: str) -> list[Token]:
        found = [Token(self.tokenizer.vocabulary[index]) for index in self.tokenizer.encode([line])[0]]
        for token in found:
            token.place, self.places = self.places, self.places + 1
        return found


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--original", type=Path, required=True, help="folder of the original script")
    made.add_argument("--corpus", nargs="+", required=True, help="text as data_prep.run takes it")
    made.add_argument("--tokenizer", required=True, help="folder of a lower-casing tokenizer")
    made.add_argument("--megabytes", type=float, default=10.0, help="how much of the text (default: 10)")
    made.add_argument("--results", type=Path, default=DEFAULT_FOLDER, help=f"folder that keeps finished rows (default: "
                      f"{DEFAULT_FOLDER})")  # fmt: skip
    given = made.parse_args()
    from data_prep.vocabulary.wordpiece import WordPieceTokenizer

    tokenizer = WordPieceTokenizer.load(given.tokenizer)
    given.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.results) as name:
        folder = Path(name)
        text = write_sentences(given.corpus, folder / "text.txt", given.megabytes)
        (folder / "tensorflow.py").write_text(TENSORFLOW)
        (folder / "six.py").write_text(SIX)
        (folder / "vocab.txt").write_text("\n".join(tokenizer.vocabulary) + "\n", encoding="utf-8")
        facts = {"machine": machine(), "bytes": text.size, "tokenizer": tokenizer.digest(), "corpus": given.corpus}
        facts["code"] = code(
            "data_prep", *(f"benchmarks/{name}.py" for name in ("original_script", "data_preparation", "process_tree"))
        )
        table = Table(given.results / "original_script.jsonl", facts)
        options = ["--tokenizer", str(given.tokenizer), "--workers", "1", "--sequence-length", str(LENGTH)]
        table.row("original", lambda: original(text, tokenizer, given.original, folder).row()
                  | speed(text, timed_original(text, given.original, folder)))  # fmt: skip
        table.row("ours", lambda: ours(text, tokenizer).row() | speed(text, prepared(text, options)))
    print(f"{text.size / MB:,.1f} MB of {', '.join(given.corpus)}; {machine()}\n")
    print(table.markdown(COLUMNS))
    return 0


def write_sentences(paths: list[str], path: Path, megabytes: float) -> Text:
    """Write the first documents of a corpus, a sentence a line, a blank line after each document."""
    from data_prep.text.corpus import Corpus
    from data_prep.text.sentences import split

    corpus, used = Corpus(paths), 0
    with path.open("w", encoding="utf-8") as file:
        for document in corpus.documents():
            if used >= megabytes * MB:
                break
            lines = [" ".join(line.split()) for line in split(document.lines, "en", document.line)]
            file.write("\n".join(filter(None, lines)) + "\n\n")
            used += num_bytes(lines)
    return Text(path, path.stat().st_size, "sentence")


def documents_of(path: Path) -> Iterator[list[str]]:
    """The lines of each document, as the original reads them."""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        if lines := [line for line in block.split("\n") if line.strip()]:
            yield lines


def original(text: Text, tokenizer, script: Path, folder: Path) -> Made:
    """The examples of the original script, each token followed."""
    given, sys.argv, sys.path[:0] = sys.argv, sys.argv[:1], [str(folder), str(script)]
    module = importlib.import_module("create_pretraining_data")
    sys.argv, sys.path[:2] = given, []
    marking = Marking(tokenizer)
    instances = module.create_training_instances(
        [str(text.path)], marking, LENGTH, 1, SHORT, MASKED, MOST_MASKED, random.Random(SEED)
    )
    uses, rows = np.zeros(marking.places, dtype=np.int64), []
    for instance in instances:
        tokens = list(instance.tokens)
        for place, token in zip(instance.masked_lm_positions, instance.masked_lm_labels, strict=True):
            tokens[place] = token
        size = instance.segment_ids.count(0)
        a, b = ([token.place for token in part] for part in (tokens[1 : size - 1], tokens[size:-1]))
        np.add.at(uses, a + b, 1)
        rows.append((len(a), len(b), int(instance.is_random_next), a[0], b[0]))
    a, b, label, *places = np.array(rows).T
    starts = np.cumsum([sum(map(len, tokenizer.encode(lines))) for lines in documents_of(text.path)])
    return Made(a, b, label, *(np.searchsorted(starts, place, side="right") for place in places), uses)


def timed_original(text: Text, script: Path, folder: Path) -> dict:
    """The original script as a command."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    options = {"input_file": text.path, "output_file": folder / "records", "vocab_file": folder / "vocab.txt",
               "max_seq_length": LENGTH, "dupe_factor": 1}  # fmt: skip
    command = [sys.executable, str(script / "create_pretraining_data.py")]
    seconds, memory = measured([*command, *(f"--{name}={value}" for name, value in options.items())], environment)
    if not (folder / "records").stat().st_size:
        raise SystemExit("the original script wrote no record")
    return {"seconds": seconds, "memory": memory}


def ours(text: Text, tokenizer) -> Made:
    """Our examples of an epoch, all documents in one shard."""
    from data_prep.examples.pairs import pairs
    from data_prep.prepared import Shard

    encoded = [[ids for ids in tokenizer.encode(lines) if ids] for lines in documents_of(text.path)]
    lengths = [len(ids) for document in encoded for ids in document]
    starts, documents = np.cumsum([0, *lengths]), np.cumsum([0, *map(len, encoded)])
    ids = np.array([index for document in encoded for sentence in document for index in sentence])
    rows = pairs(Shard(0, ids, starts, documents), LENGTH, 1, 0, tokenizer.starts_word)
    uses = np.zeros(len(ids), dtype=np.int64)
    for begin, length in ((rows.a_start, rows.a_length), (rows.b_start, rows.b_length)):
        for first, size in zip(begin.tolist(), length.tolist(), strict=True):
            uses[first : first + size] += 1
    of_a, of_b = (np.searchsorted(starts[documents], begin, side="right") for begin in (rows.a_start, rows.b_start))
    return Made(rows.a_length, rows.b_length, rows.label, of_a, of_b, uses)


def speed(text: Text, found: dict) -> dict:
    """Megabytes a second and peak memory of a whole command."""
    memory = f"{found['memory'] / 1e9:.2f}" if found["memory"] else ""
    return {"rate": f"{text.size / MB / found['seconds']:.2f}", "memory": memory}


if __name__ == "__main__":
    sys.exit(run(main))
