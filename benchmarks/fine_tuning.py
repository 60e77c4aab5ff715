"""Sentences a second in fine-tuning and prediction, beside the Trainer and the pipeline of transformers: of a class for
each text, of a tag for each word, or of an answer to each question.

    pip install 'transformers[torch]>=5'
    python benchmarks/fine_tuning.py --model runs/articles/final --train train.jsonl --validation validation.jsonl \\
        --test test.jsonl
    python benchmarks/fine_tuning.py --model runs/articles/final --train train.conll --validation validation.conll \\
        --test test.conll
    python benchmarks/fine_tuning.py --model runs/articles/final --train train.json --validation validation.json \\
        --test test.json

About 40 minutes for 14,778 sentences, 3 epochs, a model of 4 layers x 256 and 2 cores.

Both sides start from one pretrained folder and get the same rows; their ids are compared before anything is measured.
Same epochs, batch size, learning rate with its warm-up and linear decay, weight decay, clipping, dropout 0.1, bf16
where the hardware computes in it. The Trainer trains twice: on texts in random order, its default, and grouped by
length; both times with what makes it fastest, found out on the first rows (SDPA or eager attention, how its process
arranges memory; so are batch size and order in prediction).

  fine-tuning   training alone: forward, backward, optimizer and making batches. Not in it: reading, tokenizing, opening
                the model, evaluation, checkpoints. Scores are those of the last weights: the accuracy, or, of tags,
                the F1 of entities by seqeval in its strict mode, and of answers that of
                words, by the rules of SQuAD.
  prediction    texts in, labels out, tokenizing included; opening the model is not. Both sides open the folder that
                ours was fine-tuned to, in float32 and in bf16 (ours: autocast, pipeline: weights in bf16). Of classes
                alone.

Of tags and answers, texts that are longer than the model reads are left out on both sides: ours would read them in
windows.

Each measurement is a process of its own; they take turns: one seed after the other until the minutes are over,
then rounds of prediction. Medians.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from table import Table, code, machine, parser

SIDES = ("ours", "transformers")
# How the Trainer can order texts; the first is its default.
ORDERS = {"random": "random order", "group_by_length": "grouped by length"}
TRAINED = {"ours": None} | {f"transformers, {words}": order for order, words in ORDERS.items()}
KINDS = ("classification", "tagging", "question-answering")
SHARED = ("model", "sequence_length", "batch_size", "learning_rate", "weight_decay", "warmup", "clip_norm", "dropout",
          "precision", "device", "micro_batch_tokens", "long_text")  # fmt: skip
PREDICTED, TRY_ROWS = 3000, 960
# Of the minutes; the tries and prediction take the rest.
FINE_TUNING_SHARE = 0.7
QUICK = {"train": 384, "predict": 192, "try": 64}


@dataclass(frozen=True)
class Plan:
    """What all measurements share: a job's common part, and where the fine-tuned classifier is kept."""

    job: dict
    classifier: Path
    is_quick: bool
    rows: dict

    @property
    def precisions(self) -> list[str]:
        """Those in which prediction is measured."""
        return ["fp32", "bf16"] if self.job["settings"]["precision"] == "bf16" else ["fp32"]

    @property
    def of_classes(self) -> bool:
        """Whether a class of each text is learned, and not a tag of each word."""
        return self.job["kind"] == "classification"

    @property
    def memories(self) -> list[str]:
        """How the peer's process arranges its memory, to be tried."""
        return ["ours"] if self.is_quick else ["ours", "its own"]


def main() -> int:
    made = parser(__doc__, minutes=40)
    made.add_argument("--model", required=True, help="pretrained folder")
    made.add_argument("--train", required=True, help="labelled texts, as finetune.run takes them")
    made.add_argument("--validation", required=True)
    made.add_argument("--test", required=True)
    made.add_argument("--epochs", type=int, default=3)
    made.add_argument("--batch-size", type=int, default=32)
    made.add_argument("--learning-rate", type=float, help="default: that of finetune.run")
    made.add_argument("--seeds", type=int, default=3, help="the most seeds, as time allows (default: 3)")
    given = made.parse_args()
    if not (find_spec("transformers") and find_spec("accelerate")):
        print("error: the peer is not installed: pip install 'transformers[torch]>=5'", file=sys.stderr)
        return 2
    from data_prep.errors import UserError

    with tempfile.TemporaryDirectory() as folder:
        try:
            with redirect_stdout(sys.stderr):
                plan, facts = prepared(given, Path(folder))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        sides = (f"benchmarks/{name}.py" for name in ("fine_tuning_sides", "one_step", "transformers_classifier"))
        sources = code("data_prep", "model", "pretrain", "finetune", *sides, packages=("torch", "transformers"))
        table = Table(given.results / "fine_tuning.jsonl", facts | {"code": sources})
        fine_tuning(table, plan, 1 if given.quick else given.seeds, given.minutes * 60)
        if plan.of_classes:
            prediction(table, plan, rounds=1 if given.quick else 3)
    settings = plan.job["settings"]
    print(f"{given.model} on {len(plan.rows['train']):,} texts, {settings['epochs']} epochs, batches of "
          f"{settings['batch_size']}, learning rate {settings['learning_rate']:g}, {settings['precision']}; "
          f"{machine()}\n")  # fmt: skip
    score = {"classification": "accuracy", "tagging": "strict F1"}.get(plan.job["kind"], "F1")
    print(table.markdown({"": "", "rate": "sentences/s", "seconds": "seconds", "validation": f"validation {score}",
                          "test": f"test {score}", "note": ""}))  # fmt: skip
    conclude(table, plan)
    return 0


def prepared(given, folder: Path) -> tuple[Plan, dict]:
    """The plan, its rows written for the processes, and what the numbers depend on."""
    from finetune.dataset import read_dataset
    from finetune.finetuning import prepare
    from finetune.resolve import resolve, with_task
    from finetune.settings import FinetuneError, FinetuneSettings

    settings = resolve(
        FinetuneSettings(
            model=given.model, train=given.train, validation=given.validation, test=given.test,
            batch_size=given.batch_size, learning_rate=given.learning_rate or "auto", seed=1,
        )
    )  # fmt: skip
    dataset = read_dataset(settings)
    if dataset.task.name not in KINDS:
        raise FinetuneError(f"{given.train} is for {dataset.task.name}: give rows of {', '.join(KINDS)}")
    settings = with_task(settings, dataset.task)
    digest = prepare(settings, dataset).digest
    rows: dict = {
        "labels": getattr(dataset.task, "labels", ["start", "end"]),
        "columns": dataset.columns.texts,
        "task": dataset.task.name,
    }
    for part in ("train", "validation", "test"):
        rows[part] = plain_rows(dataset.task, getattr(dataset, part), settings)
    rows["predict"] = (rows["test"] + rows["train"])[:PREDICTED]
    check_same_ids(settings, rows)
    if given.quick:
        rows["train"], rows["predict"] = rows["train"][: QUICK["train"]], rows["predict"][: QUICK["predict"]]
    path = folder / "rows.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    epochs = 1 if given.quick else given.epochs
    shared = {name: getattr(settings, name) for name in SHARED} | {"epochs": epochs, "labels": rows["labels"]}
    trained = hashlib.blake2b(json.dumps([digest, shared, given.quick]).encode(), digest_size=8).hexdigest()
    classifier = (given.results / f"fine_tuned-{trained}").absolute()
    job = {"settings": shared, "rows": str(path), "classifier": str(classifier), "memory": "ours", "save": None,
           "kind": rows["task"],
           "try_rows": QUICK["try"] if given.quick else TRY_ROWS, "seed": 1}  # fmt: skip
    facts = {"machine": machine(), "data": digest, "settings": shared, "rows": len(rows["train"])}
    return Plan(job, classifier, given.quick, rows), facts


def plain_rows(task, examples, settings) -> list[list]:
    """Texts, second texts and classes; or, of texts that are read at once, words, None and tags, or questions,
    contexts and the characters of their answers."""
    import numpy as np

    from data_prep.vocabulary.wordpiece import WordPieceTokenizer

    if task.name == "classification":
        labels = task.targets(examples).tolist()
        return [[e.text, e.text_pair, label] for e, label in zip(examples, labels, strict=True)]
    encoded = task.encode(examples, WordPieceTokenizer.load(settings.model), settings.sequence_length, "windows")
    windows = np.bincount(encoded.text, minlength=encoded.num_texts)
    if windows.max(initial=0) > 1:
        print(f"{(windows > 1).sum():,} of {len(examples):,} texts are too long and left out.", file=sys.stderr)
    short = [example for example, count in zip(examples, windows, strict=True) if count == 1]
    if task.name == "question-answering":
        return [[e.text, e.text_pair, list(map(list, e.label))] for e in short if e.label]
    return [[[e.text[start:end] for start, end in e.words], None, [task.labels[i] for i in tags]]
            for e, tags in zip(short, task.of_texts(task.targets(short)[:, 1], short), strict=True)]  # fmt: skip


def check_same_ids(settings, rows: dict) -> None:
    """Refuse to compare sides that do not read the same ids."""
    import numpy as np
    from fine_tuning_sides import encode
    from transformers_classifier import features

    from finetune.batches import BatchMaker

    tokenizer, encoded, _ = encode(settings, rows)
    job = {"kind": rows["task"], "settings": {"model": settings.model, "sequence_length": settings.sequence_length,
                                              "labels": rows["labels"]}}  # fmt: skip
    for part, found in encoded.items():
        ours = BatchMaker(found, tokenizer, 0).packed(np.arange(found.num_texts)).input_ids.numpy()
        theirs = np.concatenate([each["input_ids"] for each in features(job, rows[part])])
        assert np.array_equal(ours, theirs), f"the two sides read other ids of the {part} texts"


def run_job(plan: Plan, side: str, task: str, **more) -> dict | list:
    """Have a process do a job; what it found."""
    import finetune
    from pretrain.engine.device import default_threads

    root = str(Path(finetune.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": str(default_threads()),
    }
    job = plan.job | {"side": side, "task": task, "precisions": plan.precisions} | more
    command = [sys.executable, str(Path(__file__).with_name("fine_tuning_sides.py")), json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{task} of {side} failed: see its output above")
    return json.loads(done.stdout.splitlines()[-1])


def fine_tuning(table: Table, plan: Plan, seeds: int, seconds: float) -> None:
    """Ours and both of the peer's orders, seed after seed; a seed after the first only if the time allows, rows of an
    earlier call included."""
    spent = 0.0
    for seed in range(1, seeds + 1):
        if seed > 1 and spent * seed / (seed - 1) > seconds * FINE_TUNING_SHARE:
            break
        best = best_training(table, plan)
        for name, order in TRAINED.items():
            side, more, note = "ours", {}, ""
            if order:
                side, more = "transformers", best[order]
                note = f"{more['way'][1]}, memory as {more['memory']}"
            elif not plan.classifier.exists():
                more = {"save": str(plan.classifier)}
            row = table.row(f"fine-tuning, {name}, seed {seed}", lambda s=side, m=more, n=note, i=seed: trained_row(
                plan, run_job(plan, s, "train", seed=i, **m), n))  # fmt: skip
            spent += row["seconds"]


def trained_row(plan: Plan, found: dict, note: str) -> dict:
    """A row of a training."""
    scores = {part: round(score(plan, *found[part]), 4) for part in ("validation", "test") if part in found}
    rate = round(found["texts"] / found["seconds"], 1)
    return {"rate": rate, "seconds": round(found["seconds"], 1), "note": note, **scores}


def score(plan: Plan, gold: list, given: list) -> float:
    """The share of right classes, or the F1 of entities whose tags are written as they should be.

    Args:
        gold, given: places among the labels, of each text one or one for each word; or the answers of each text, and
            the one that was given.
    """
    if plan.of_classes:
        return statistics.mean(a == b for a, b in zip(gold, given, strict=True))
    if plan.job["kind"] == "question-answering":
        from finetune.questions.answer_scores import f1, normalised

        answers = [list(map(normalised, of_text)) for of_text in gold]
        return statistics.mean(f1(normalised(a), of_text) for a, of_text in zip(given, answers, strict=True))
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    labels = plan.rows["labels"]
    named = [[[labels[i] for i in tags] for tags in each] for each in (gold, given)]
    return float(f1_score(*named, mode="strict", scheme=IOB2))


def best_training(table: Table, plan: Plan) -> dict:
    """The peer's fastest way in each order, found once; kept as a row, with the rate of every way."""

    def search() -> dict:
        tries = [(*found, memory) for memory in plan.memories
                 for found in run_job(plan, "transformers", "try_training", memory=memory)]  # fmt: skip
        best = {order: min(each for each in tries if each[1][0] == order) for order in ORDERS}
        count = min(plan.job["try_rows"], len(plan.rows["train"]))
        rates = ", ".join(f"{' '.join(w)} {m}: {count / s:.0f}" for s, w, m in tries)
        return {order: {"way": way, "memory": memory} for order, (_, way, memory) in best.items()} | {"note": rates}

    return table.row("tries of transformers' training", search)


def prediction(table: Table, plan: Plan, rounds: int) -> None:
    """Both sides in turns, unless the rows are there."""
    names = {(p, side): f"prediction {p}, {side}" for p in plan.precisions for side in SIDES}
    if all(name in table.rows for name in names.values()):
        return
    if not plan.classifier.exists():
        run_job(plan, "ours", "train", save=str(plan.classifier))
    tries = {memory: run_job(plan, "transformers", "try_prediction", memory=memory) for memory in plan.memories}
    best = {p: min((*found, memory) for memory in tries for found in tries[memory][p]) for p in plan.precisions}
    found: dict[tuple[str, str], list[dict]] = {key: [] for key in names}
    for _ in range(rounds):
        for p, each in run_job(plan, "ours", "predict").items():
            found[p, "ours"].append(each)
        for p, (_, way, memory) in best.items():
            found[p, "transformers"].append(run_job(plan, "transformers", "predict", ways={p: way}, memory=memory)[p])
    for (p, side), name in names.items():
        labels, ours = (found[key][0]["labels"] for key in ((p, side), ("fp32", "ours")))
        equal = statistics.mean(a == b for a, b in zip(labels, ours, strict=True))
        note = f"{equal:.2%} of the labels as ours in fp32"
        if side == "transformers":
            _, (batch_size, order), memory = best[p]
            note += f"; batches of {batch_size}, {order}, memory as {memory}"
        seconds = statistics.median(each["seconds"] for each in found[p, side])
        rate = round(len(plan.rows["predict"]) / seconds, 1)
        table.row(name, lambda r=rate, s=seconds, n=note: {"rate": r, "seconds": round(s, 2), "note": n})


def conclude(table: Table, plan: Plan) -> None:
    """Ratios of medians, and the mean scores."""
    trained = {each: [row for name, row in table.rows.items() if name.startswith(f"fine-tuning, {each}, seed")]
               for each in TRAINED}  # fmt: skip
    rates = {each: statistics.median(row["rate"] for row in rows) for each, rows in trained.items()}
    scores = {each: statistics.mean(row["test"] for row in rows) for each, rows in trained.items()}
    for each, rows in trained.items():
        if each != "ours":
            print(f"\nfine-tuning, ours / {each}: {rates['ours'] / rates[each]:.2f} ({len(rows)} seeds; on the test "
                  f"texts {scores['ours']:.4f} and {scores[each]:.4f})")  # fmt: skip
    for p in plan.precisions if plan.of_classes else ():
        ours, theirs = (table.rows[f"prediction {p}, {side}"]["rate"] for side in SIDES)
        print(f"\nprediction {p}, ours / transformers: {ours / theirs:.2f}")


if __name__ == "__main__":
    sys.exit(main())
