"""One side of fine_tuning.py in a process of its own: takes a job (a JSON object), prints what it found as JSON."""

import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path


def main() -> None:
    job = json.loads(sys.argv[1])
    with redirect_stdout(sys.stderr):
        if job["memory"] == "ours":
            # How the project arranges the memory of its processes, which has to come before torch.
            import pretrain  # noqa: F401
        if job["side"] == "ours":
            found = {"train": train, "predict": predict}[job["task"]](job)
        else:
            import transformers_classifier as peer

            found = getattr(peer, job["task"])(job)
    print(json.dumps(found))


def train(job: dict) -> dict:
    """Fine-tune on all rows; sentences a second of training alone, and what the last weights make of held-out texts."""
    from one_step import Steps

    from finetune.batches import BatchMaker, TextStream
    from finetune.predictor import Facts, outputs
    from finetune.training import learned
    from pretrain.engine.batches import Batches, Position
    from pretrain.engine.checkpoint import save_model_folder
    from pretrain.engine.distributed import World
    from pretrain.engine.folder import whole_folder
    from pretrain.engine.step import Learner

    settings, rows = settings_of(job), json.loads(Path(job["rows"]).read_text(encoding="utf-8"))
    tokenizer, encoded, task = encode(settings, rows)
    model = task.build_model(settings, job["seed"])
    maker = BatchMaker(encoded["train"], tokenizer, settings.micro_batch_tokens)
    objective = learned(settings, task.objective(encoded["train"], settings), model, encoded["train"].words(tokenizer))
    learner = Learner(settings, model, objective, job["seed"])
    batches = Batches(TextStream(encoded["train"], job["seed"]), maker, settings.batch_size, Position(), World())
    steps = Steps(settings, learner, batches)
    began = time.perf_counter()
    while not steps.are_over():
        steps.take()
    seconds = time.perf_counter() - began
    if job["save"]:
        with whole_folder(Path(job["save"]), model.num_bytes) as folder:
            save_model_folder(model, tokenizer, folder, model_max_length=settings.sequence_length)
            Facts(tuple(rows["columns"]), settings.sequence_length, settings.long_text, task.name).write(folder)
    answers = {}
    for part in ("validation", "test"):
        found = outputs(task, model, BatchMaker(encoded[part], tokenizer, 2048), learner.precision, World())
        answers[part] = answered(task, examples_of(task, rows[part]), found)
    return {"texts": len(rows["train"]) * job["settings"]["epochs"], "seconds": seconds, **answers}


def answered(task, examples: list, found) -> list[list]:
    """What is right of each text, and what the model gives (see `fine_tuning.score`)."""
    if task.name == "question-answering":
        given = [task.prediction(*each)["predicted_answer"] for each in zip(found, examples, strict=True)]
        return [[[e.text_pair[start:end] for start, end in e.label] for e in examples], given]
    gold, given = task.targets(examples), found.argmax(1)
    columns = (gold, given) if task.name == "classification" else (gold[:, 1], given)
    return [[each.tolist() for each in task.of_texts(column, examples)] for column in columns]


def settings_of(job: dict):
    """The settings of a job as those of `finetune.run`."""
    from finetune.settings import FinetuneSettings

    known = {name: value for name, value in job["settings"].items() if name not in ("epochs", "labels")}
    return replace(FinetuneSettings(**known), budget=f"{job['settings']['epochs']}epochs")


def examples_of(task, rows: list) -> list:
    """Rows [text, second text or None, class], [words, None, tags], or [question, context, answers], as examples."""
    from finetune.rows import Columns, Example

    if task.name == "question-answering":
        return [Example(str(n), text, pair, tuple(map(tuple, spans))) for n, (text, pair, spans) in enumerate(rows, 1)]
    if task.name == "classification":
        return [Example(str(n), text, pair, task.labels[label]) for n, (text, pair, label) in enumerate(rows, 1)]
    columns = Columns(("tokens",), "tags")
    return [
        task.example(str(n), {"tokens": words, "tags": tags}, columns) for n, (words, _, tags) in enumerate(rows, 1)
    ]


def encode(settings, rows: dict) -> tuple:
    """The tokenizer, the ids of every part by name, and the task."""
    from data_prep.vocabulary.wordpiece import WordPieceTokenizer
    from finetune.tasks.selection import TASKS

    tokenizer, kind = WordPieceTokenizer.load(settings.model), TASKS[rows["task"]]
    task = kind() if rows["task"] == "question-answering" else kind(rows["labels"])
    return (
        tokenizer,
        {
            part: task.encode(examples_of(task, rows[part]), tokenizer, settings.sequence_length, settings.long_text)
            for part in ("train", "validation", "test")
        },
        task,
    )


def predict(job: dict) -> dict:
    """Seconds from texts to labels in each precision, and the labels; rows are taken as `finetune.predict` does."""
    from finetune.predict import ROWS_AT_ONCE
    from finetune.predictor import Predictor
    from finetune.tasks.classification import Classification

    content = json.loads(Path(job["rows"]).read_text(encoding="utf-8"))
    rows = content["predict"]
    examples, found = examples_of(Classification(content["labels"]), rows), {}
    for precision in job["precisions"]:
        predictor = Predictor(job["classifier"], job["settings"]["device"], precision)
        predictor.outputs(examples[:64])
        began = time.perf_counter()
        labels = []
        for start in range(0, len(examples), ROWS_AT_ONCE):
            given = predictor.outputs(examples[start : start + ROWS_AT_ONCE])
            labels += [predictor.task.labels[number] for number in given.argmax(1)]
        found[precision] = {"texts": len(rows), "seconds": time.perf_counter() - began, "labels": labels}
    return found


if __name__ == "__main__":
    main()
