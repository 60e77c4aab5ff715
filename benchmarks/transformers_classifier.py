"""The other side of fine_tuning.py: Trainer and text-classification pipeline of transformers, as fast as they go.

Knows nothing of the project: it gets a pretrained folder and rows. Trainer: bf16 autocast where ours has it, fused
AdamW, dynamic padding, texts tokenized before the clock starts, no evaluation, checkpoint or log. Whether lengths are
grouped, and which attention it uses, is tried first; so are the batch size of the pipeline and the order of the texts.
"""

import json
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

SAMPLING, ATTENTION = ("group_by_length", "random"), ("sdpa", "eager")
BATCHES, ORDERS = (8, 32, 128), ("sorted by length", "as they come")


def train(job: dict) -> dict:
    """Fine-tune on all rows; sentences a second of training alone, and what the last weights make of held-out texts."""
    rows = json.loads(Path(job["rows"]).read_text(encoding="utf-8"))
    trainer, seconds = trained(job, rows["train"], job["settings"]["epochs"], job["way"])
    give = answered_questions if job["kind"] == "question-answering" else answered
    answers = {part: give(trainer, job, rows[part]) for part in ("validation", "test")}
    return {"texts": len(rows["train"]) * job["settings"]["epochs"], "seconds": seconds, **answers}


def try_training(job: dict) -> list:
    """(seconds, way) of every way to train on the same few rows."""
    rows = json.loads(Path(job["rows"]).read_text(encoding="utf-8"))["train"][: job["try_rows"]]
    ways = [list(way) for way in product(SAMPLING, ATTENTION)]
    trained(job, rows, 1, ways[0])
    return [(trained(job, rows, 1, way)[1], way) for way in ways]


def trained(job: dict, rows: list, epochs: int, way: list) -> tuple:
    """A Trainer that has trained, and its seconds."""
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        DataCollatorForTokenClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    settings, (sampling, attention) = job["settings"], way
    kinds = {
        "classification": (AutoModelForSequenceClassification, DataCollatorWithPadding),
        "tagging": (AutoModelForTokenClassification, DataCollatorForTokenClassification),
        "question-answering": (AutoModelForQuestionAnswering, DataCollatorWithPadding),
    }
    kind, collator = kinds[job["kind"]]
    set_seed(job["seed"])
    model = kind.from_pretrained(
        settings["model"],
        num_labels=len(settings["labels"]),
        hidden_dropout_prob=settings["dropout"],
        attention_probs_dropout_prob=settings["dropout"],
        attn_implementation=attention,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=settings["batch_size"],
            per_device_eval_batch_size=128,
            learning_rate=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            warmup_steps=settings["warmup"],
            lr_scheduler_type="linear",
            optim="adamw_torch_fused",
            adam_epsilon=1e-6,
            max_grad_norm=settings["clip_norm"],
            bf16=settings["precision"] == "bf16",
            use_cpu=settings["device"] == "cpu",
            train_sampling_strategy=sampling,
            dataloader_pin_memory=settings["device"] != "cpu",
            eval_strategy="no",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=job["seed"],
        )
        made = features(job, rows)
        trainer = Trainer(model, arguments, train_dataset=made, data_collator=collator(tokenizer(job)))
        began = time.perf_counter()
        trainer.train()
        return trainer, time.perf_counter() - began


def tokenizer(job: dict):
    """The tokenizer of the pretrained folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(job["settings"]["model"])


def features(job: dict, rows: list) -> list[dict]:
    """Rows [text, second text or None, class], [words, None, tags], or [question, context, answers], as a Trainer takes
    them."""
    if job["kind"] == "tagging":
        return tagged_features(job, rows)
    if job["kind"] == "question-answering":
        return [row for row, _ in question_features(job, rows)]
    pairs = [pair for _, pair, _ in rows] if rows[0][1] is not None else None
    found = tokenizer(job)(
        [text for text, _, _ in rows], pairs, truncation=True, max_length=job["settings"]["sequence_length"]
    )
    return [
        {name: values[i] for name, values in found.items()} | {"labels": label} for i, (_, _, label) in enumerate(rows)
    ]


def tagged_features(job: dict, rows: list) -> list[dict]:
    """The first piece of each word has its tag, as in run_ner.py."""
    settings = job["settings"]
    places = {name: place for place, name in enumerate(settings["labels"])}
    found = tokenizer(job)([words for words, _, _ in rows], is_split_into_words=True, truncation=True,
                           max_length=settings["sequence_length"])  # fmt: skip
    made = []
    for number, (_, _, tags) in enumerate(rows):
        words = found.word_ids(number)
        is_first = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
        labels = [places[tags[word]] if first else -100 for word, first in zip(words, is_first, strict=True)]
        made.append({name: values[number] for name, values in found.items()} | {"labels": labels})
    return made


def question_features(job: dict, rows: list) -> list[tuple[dict, list]]:
    """The tokens of the first answer, as in run_qa.py; beside them the characters of the context's tokens, None at
    others."""
    found = tokenizer(job)([text for text, _, _ in rows], [context for _, context, _ in rows], truncation="only_second",
                           max_length=job["settings"]["sequence_length"], return_offsets_mapping=True)  # fmt: skip
    made = []
    for number, (_, _, answers) in enumerate(rows):
        characters = [place if kind == 1 else None for place, kind in
                      zip(found["offset_mapping"][number], found.sequence_ids(number), strict=True)]  # fmt: skip
        begin, end = answers[0]
        inside = [token for token, place in enumerate(characters) if place and place[0] < end and place[1] > begin]
        row = {name: values[number] for name, values in found.items() if name != "offset_mapping"}
        made.append((row | {"start_positions": inside[0], "end_positions": inside[-1]}, characters))
    return made


def answered_questions(trainer, job: dict, rows: list) -> list[list]:
    """The answers of texts, and of each the span of the best scores, of up to 30 tokens."""
    made = question_features(job, rows)
    # Grouping by length would change the order of the predictions.
    trainer.args.train_sampling_strategy = "random"
    starts, ends = trainer.predict([row for row, _ in made]).predictions
    given = []
    for (_, context, _), (_, characters), start, end in zip(rows, made, starts, ends, strict=True):
        inside = np.array([place is not None for place in characters])
        size = len(characters)
        scores = start[:size, None] + end[None, :size]
        after = np.arange(size)[None, :] - np.arange(size)[:, None]
        scores[~(inside[:, None] & inside[None, :] & (after >= 0) & (after < 30))] = -np.inf
        first, last = divmod(int(scores.argmax()), size)
        given.append(context[characters[first][0] : characters[last][1]])
    return [[[context[begin:end] for begin, end in answers] for _, context, answers in rows], given]


def answered(trainer, job: dict, rows: list) -> list[list]:
    """The gold labels of texts and those that the model gives: of each text one, or one for each word."""
    # Grouping by length changes the order of the predictions too, but of their labels alike.
    found = trainer.predict(features(job, rows))
    gold, given = found.label_ids, found.predictions.argmax(-1)
    if gold.ndim == 1:
        return [gold.tolist(), given.tolist()]
    return [[row[own >= 0].tolist() for row, own in zip(each, gold, strict=True)] for each in (gold, given)]


def predict(job: dict) -> dict:
    """Seconds from texts to labels in each precision, and the labels."""
    rows = json.loads(Path(job["rows"]).read_text(encoding="utf-8"))["predict"]
    found = {}
    for precision, way in job["ways"].items():
        seconds, labels = labelled(job, rows, precision, *way)
        found[precision] = {"texts": len(rows), "seconds": seconds, "labels": labels}
    return found


def try_prediction(job: dict) -> dict:
    """For each precision (seconds, way) of every way to label the same few rows."""
    rows = json.loads(Path(job["rows"]).read_text(encoding="utf-8"))["predict"][: job["try_rows"]]
    ways = [list(way) for way in product(BATCHES, ORDERS)]
    return {p: [(labelled(job, rows, p, *way)[0], way) for way in ways] for p in job["precisions"]}


def labelled(job: dict, rows: list, precision: str, batch_size: int, order: str) -> tuple[float, list[str]]:
    """Seconds, and the label of every row."""
    import torch
    from transformers import pipeline

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    classify = pipeline("text-classification", job["classifier"], dtype=dtype, device=job["settings"]["device"])
    options = {"batch_size": batch_size, "truncation": True, "max_length": job["settings"]["sequence_length"]}
    texts = [text if pair is None else {"text": text, "text_pair": pair} for text, pair, _ in rows]
    classify(texts[:64], **options)
    began = time.perf_counter()
    places = np.arange(len(rows))
    if order == "sorted by length":
        places = np.argsort([len(text) + len(pair or "") for text, pair, _ in rows], kind="stable")
    labels = [""] * len(rows)
    for place, answer in zip(places, classify([texts[place] for place in places], **options), strict=True):
        labels[place] = answer["label"]
    return time.perf_counter() - began, labels
