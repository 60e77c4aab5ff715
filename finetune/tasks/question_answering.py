"""Answers to questions, as spans of a context, or that it holds none (Devlin et al. 2019, sections 4.2 and 4.3)."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_prep.durable import write_text
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import BertConfig, BertForQuestionAnswering
from pretrain.engine.model_card import table
from pretrain.engine.step import Objective

from ..batches import Encoded, LabelledBatch
from ..collapse import Collapse, where_no_better
from ..mistakes import MOST_MISTAKES, Mistake, mistakes_markdown
from ..questions import answer_baselines
from ..questions.answer_scores import METRICS, OF_UNANSWERABLE, best_threshold, is_null, means, scores_of_texts
from ..questions.answers import Span, answers_of
from ..questions.best_answers import (
    LONGEST_CONTEXT,
    WIDTH,
    best,
    best_answers,
    mean_answers,
    null_scores,
    probabilities,
)
from ..questions.contexts import EncodedQuestions, encode_questions
from ..questions.span_losses import span_losses
from ..rows import Columns, Example, text_of
from ..settings import FACTS_FILE, FinetuneError, FinetuneSettings, LongText
from . import Card, Form, HeldOut, Task, entropy
from .sequences import fine_tuned, new_model

MOST_ALIKE, FIRST, NONE = "sentence most like the question", "first sentence", "no answer"
ANSWER, START, END, PROBABILITY = "predicted_answer", "predicted_start", "predicted_end", "probability"
NULL_SCORE, ANSWERS = "null_score", "predicted_answers"


class QuestionAnswering(Task):
    """A span of the context for each question, or none.

    The model learns the first and the last token of the first answer in each window. The best answers of a text are
    evaluated (see `finetune.questions.best_answers`), with the examples themselves as targets.

    Args:
        threshold: no answer is given where the score of none exceeds that of the best answer by more than this. None:
            every question gets an answer, because every training question has one.
    """

    name = "question-answering"
    label_columns = ("answers",)
    pair_columns = (("question", "context"), ("question", "passage"), ("question", "paragraph"), ("query", "context"))
    needs_pairs = True
    long_texts, prediction_holds_text = ("windows",), True
    forms = {"squad": Form("{", ",\n", "}\n", key="id")}
    default_metric = "f1"
    num_outputs = 2

    def __init__(self, threshold: float | None = None):
        self.threshold, self.can_be_null = threshold, threshold is not None
        self.metrics = METRICS + (OF_UNANSWERABLE if self.can_be_null else ())
        self.shown = {"F1": "f1", "exact match": "exact_match"}
        if self.can_be_null:
            self.shown |= {
                "F1, answerable": "answerable_f1", "unanswerable right": "unanswerable_f1",
                "exact match, answerable": "answerable_exact_match",
            }  # fmt: skip
        self.baseline_names = (MOST_ALIKE, FIRST, *([NONE] if self.can_be_null else []))

    # --- rows

    def example(self, place: str, row: Mapping[str, Any], columns: Columns) -> Example:
        """A question and its context, with where its answers are; raises ValueError with what is wrong with it."""
        question, context = (text_of(row, name) for name in columns.texts)
        if len(context) > LONGEST_CONTEXT:
            raise ValueError(f"has a context of {len(context):,} characters, and {LONGEST_CONTEXT:,} are read at most")
        label = None if columns.label is None else answers_of(row, columns.label, context)
        return Example(place, question, context, label)

    def label_of(self, row: Mapping[str, Any], column: str) -> Any:
        """The answers of a row are read with its context (see `example`)."""
        return row.get(column)

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "QuestionAnswering":
        """Raises FinetuneError where no question has an answer, or where the head is to have hidden layers."""
        if settings.hidden_layers:
            raise FinetuneError(
                f"--hidden-layers is for other heads, that of {self.name} is a single layer: leave it out"
            )
        none = sum(not example.label for example in train)
        if none == len(train):
            raise FinetuneError(f'no question of {settings.train} has an answer in "{columns.label}": give others')
        return QuestionAnswering(0.0 if none else None)

    def of_model(self, config: BertConfig) -> "QuestionAnswering":
        """Whether a question may have no answer is part of what was decided (see `with_decision`)."""
        return QuestionAnswering()

    def facts(self) -> list[str]:
        """Whether a question may have no answer."""
        return [self.name, str(self.can_be_null)]

    def stratum(self, example: Example) -> str:
        """Whether it has an answer."""
        return "answerable" if example.label else "unanswerable"

    def describe(self, train: Sequence[Example]) -> list[str]:
        """How many questions have an answer, and that those of one context are alike."""
        none, contexts = sum(not row.label for row in train), len({row.text_pair for row in train})
        several = sum(len(row.label) > 1 for row in train)
        more = f", {several:,} with several answers, of which the first is learned" if several else ""
        apart = "" if train[0].group or contexts == len(train) else (
            " With --group-column (the column of contexts, or of titles) all questions of one are held back, or none."
        )  # fmt: skip
        on = f"{contexts:,} context{'' if contexts == 1 else 's'}"
        return [f"{len(train):,} questions on {on}, {none:,} of them without an answer{more}.{apart}"]

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """What answers are judged by, the examples themselves: objects [n]."""
        found = np.empty(len(examples), dtype=object)
        found[:] = examples
        return found

    def encode(
        self, examples: Sequence[Example], tokenizer: TextTokenizer, sequence_length: int, long_text: LongText
    ) -> EncodedQuestions:
        """Every question with all of its context, in overlapping windows where that is long."""
        return encode_questions(examples, tokenizer, sequence_length)

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForQuestionAnswering:
        """The encoder under a new head (see `Task.build_model`)."""
        return new_model("question_answering", settings, seed, id2label={0: "LABEL_0", 1: "LABEL_1"})

    def open_model(self, folder: Path) -> BertForQuestionAnswering:
        """Raises FinetuneError where the folder is damaged, or its head was never trained."""
        return fine_tuned("question_answering", folder)

    def objective(self, train: Encoded, settings: FinetuneSettings) -> "SpanObjective":
        """The cross entropy of start and end."""
        return SpanObjective()

    def collapse(self, train: Encoded, outputs: np.ndarray, objective: Objective, rate: float) -> Collapse | None:
        """A loss at that of one who knows only how often a window holds no answer."""
        assert isinstance(train, EncodedQuestions)
        return where_no_better(Collapse(rate, *span_losses(outputs, train)))

    # --- judging

    def logits(self, model: BertForQuestionAnswering, batch: LabelledBatch) -> Tensor:
        """Of start and end, at [CLS] and the tokens of the contexts: [P, 2]."""
        return model.logits_at(batch, batch.places)

    def outputs(self, logits: Tensor) -> Tensor:
        """The logits, as probabilities take all windows of a text."""
        return logits.float()

    def judged(self, outputs: np.ndarray, encoded: Encoded) -> np.ndarray:
        """The best answers of each text: float32 [n, 1 + 3 B] (see `finetune.questions.best_answers`)."""
        assert isinstance(encoded, EncodedQuestions)
        return best_answers(outputs, encoded)

    def averaged(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """See `finetune.questions.best_answers.mean_answers`; of one text, [1 + 3 B] each, too."""
        rows = mean_answers([each.reshape(-1, WIDTH) for each in outputs], self.can_be_null)
        return rows.reshape(np.shape(outputs[0]))

    def tuned(self, targets: np.ndarray, outputs: np.ndarray) -> "QuestionAnswering":
        """With the threshold of the best F1 on these texts, if some have no answer and some have one."""
        if not self.can_be_null or len({bool(example.label) for example in targets}) < 2:
            return self
        return QuestionAnswering(best_threshold(targets, outputs))

    def decision(self) -> dict[str, Any]:
        """The threshold."""
        return {"null_threshold": self.threshold}

    def with_decision(self, decision: Mapping[str, Any]) -> "QuestionAnswering":
        """A folder of transformers, which holds no threshold, always answers."""
        threshold = decision.get("null_threshold")
        if threshold is not None and not (isinstance(threshold, float | int) and math.isfinite(threshold)):
            raise FinetuneError(f"the null_threshold in {FACTS_FILE} is no number: copy the folder again")
        return QuestionAnswering(threshold)

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """See `finetune.questions.answer_scores`."""
        return means(scores_of_texts(targets, outputs, self.threshold), slice(None), self.can_be_null)

    def scores_of_draws(
        self, targets: np.ndarray, outputs: np.ndarray, draws: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The same of each draw; texts are compared once."""
        of_texts = scores_of_texts(targets, outputs, self.threshold)
        found = [means(of_texts, texts, self.can_be_null) for texts in draws]
        return {name: np.array([scores[name] for scores in found], np.float64) for name in self.metrics}

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """Sentences of the context, and no answer where some questions have none (see `answer_baselines`)."""
        made = {MOST_ALIKE: answer_baselines.most_alike, FIRST: answer_baselines.first_sentence,
                NONE: answer_baselines.no_answer}  # fmt: skip
        return {name: {split: made[name](rows) for split, rows in held_out.items()} for name in self.baseline_names}

    def uncertainty(self, outputs: np.ndarray) -> tuple[float, float]:
        """That of the distribution over the best answers and none."""

        def of(rows: np.ndarray) -> np.ndarray:
            null, each = probabilities(rows, self.can_be_null)
            return entropy(np.concatenate([null[..., None], each], axis=-1))

        of_mean, of_each = float(of(self.averaged(list(outputs)))), float(of(outputs).mean())
        return of_mean, max(0.0, of_mean - of_each)

    def doubt(self, target: Example, output: np.ndarray) -> float:
        """How improbable the answers of a text are together."""
        return float(1 - np.exp(-scores_of_texts([target], output[None], self.threshold)["loss"][0]))

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """The threshold, and how many questions of each split have no answer."""
        none = {split: sum(not row.label for row in rows) for split, rows in {"train": train, **held_out}.items()}
        return {"null_threshold": self.threshold, "unanswerable": none}

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """mistakes.md: the surest wrong answers."""
        with_text = settings.show_text == "yes"
        write_text(out / "mistakes.md", mistakes_markdown(self._mistakes(shown, with_text), with_text))

    def _mistakes(self, shown: HeldOut, with_text: bool) -> list[Mistake]:
        found = scores_of_texts(shown.examples, shown.outputs, self.threshold)
        rows = []
        for number in np.flatnonzero(found["exact_match"] == 0):
            example, given = shown.examples[number], self.prediction(shown.outputs[number], shown.examples[number])
            spans = [(given[START], given[END])] if given[ANSWER] else []
            names = [_named(each, example, with_text) for each in (example.label[:1], spans)]
            rows.append(Mistake(example.place, example.text, example.text_pair, *names, given[PROBABILITY]))
        return sorted(rows, key=lambda mistake: -mistake.probability)[:MOST_MISTAKES]

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """From which score on no answer is given, and where the mistakes are."""
        sentences = [f"\nThe most confident mistakes are in {out / 'mistakes.md'}."]
        none, given_none = results["unanswerable"][shown.split], is_null(shown.outputs, self.threshold).sum()
        if self.can_be_null:
            without, rows = results["unanswerable"]["validation"], results["rows"]["validation"]
            chosen = ("chosen on the validation texts" if 0 < without < rows else
                      f"as {'all' if without else 'none'} of the validation questions lack an answer")  # fmt: skip
            said = (f"No answer is given where its score minus that of the best answer is over {self.threshold:.3f}, "
                    f"{chosen}: to {given_none:,} of the {len(shown.examples):,} {shown.split} "
                    f"questions, {none:,} of which have none.")  # fmt: skip
        else:
            said = "Every question is given an answer, as every training question has one." if none else ""
        return [f"\n{said}", *sentences] if said else sentences

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """Whether, and from which score on, no answer is given stands below the scores."""
        rows = [(part, f"{results['rows'][part]:,}", f"{none:,}") for part, none in results["unanswerable"].items()]
        how = "Every question is given an answer."
        if self.can_be_null:
            how = (f"No answer is given where its score (start and end at [CLS]) minus that of the best answer is over "
                   f"{self.threshold:.3f}.")  # fmt: skip
        return Card(
            kind="question-answering",
            name="a question answering model of a domain",
            title="Answers to questions, as spans of a text",
            findings=f"{how}\n\n{table(('split', 'questions', 'without an answer'), rows)}",
            metrics=("f1", "exact_match"),
            example=_EXAMPLE,
        )

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The answer, its characters and its probability, and the best answers; an empty text is no answer.

        Probabilities are a softmax over the scores of the best answers and, where a question may have none, of none.
        """
        of_null, of_each = probabilities(output, self.can_be_null)
        found = best(output)
        answers = [
            {"text": example.text_pair[int(start) : int(end)], "start": int(start), "end": int(end),
             "probability": round(float(p), 6)}
            for start, end, score, p in zip(found.starts, found.ends, found.scores, of_each, strict=True)
            if score > -np.inf
        ]  # fmt: skip
        given = {ANSWER: "", START: None, END: None, PROBABILITY: round(float(of_null), 6)}
        if not is_null(output[None], self.threshold)[0]:
            given = dict(zip((ANSWER, START, END, PROBABILITY), answers[0].values(), strict=True))
        own = {NULL_SCORE: round(float(null_scores(output)), 6)} if self.can_be_null else {}
        return {**given, **own, ANSWERS: answers}

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The same without the list of the best answers."""
        return {name: value for name, value in self.prediction(output, example).items() if name != ANSWERS}

    def prediction_names(self, is_table: bool) -> list[str]:
        """The names in a prediction."""
        own = [NULL_SCORE] if self.can_be_null else []
        return [ANSWER, START, END, PROBABILITY, *own, *([] if is_table else [ANSWERS])]

    def written(self, form: str, row: Mapping[str, Any], example: Example, output: np.ndarray) -> str:
        """The id and the answer, of one object that evaluation scripts of SQuAD read; raises FinetuneError where the
        row has no id."""
        if row.get("id") is None:
            raise FinetuneError(
                f'{example.place} has no "id", which --format squad names answers by: give jsonl or csv'
            )
        answer = self.prediction(output, example)[ANSWER]
        return f"{json.dumps(str(row['id']), ensure_ascii=False)}: {json.dumps(answer, ensure_ascii=False)}"

    def shown_targets(self, targets: np.ndarray) -> str:
        """Which tokens of the window's context are the answer."""
        start, end = (int(column.argmax()) for column in targets.T)
        return "no answer here" if start == 0 else f"tokens {start} to {end} of the context"


def _named(spans: Sequence[Span], example: Example, with_text: bool) -> str:
    """An answer as mistakes show it."""
    if not spans:
        return "no answer"
    start, end = spans[0]
    return example.text_pair[start:end] if with_text else f"characters {start} to {end}"


_EXAMPLE = """import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

folder = "path/to/this/folder"
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForQuestionAnswering.from_pretrained(folder)
question, context = "Who was admitted?", "A patient was admitted."
given = tokenizer(question, context, truncation="only_second", return_tensors="pt", return_offsets_mapping=True)
places = given.pop("offset_mapping")[0]
of_context = torch.tensor([kind == 1 for kind in given.sequence_ids()])
with torch.no_grad():
    found = model(**given)
start, end = (scores[0].masked_fill(~of_context, -1e9) for scores in (found.start_logits, found.end_logits))
after = torch.arange(len(start))[None, :] - torch.arange(len(start))[:, None]
scores = (start[:, None] + end[None, :]).masked_fill((after < 0) | (after >= 30), -2e9)
first, last = divmod(int(scores.argmax()), len(start))
print(context[places[first][0] : places[last][1]])"""


class SpanObjective:
    """The cross entropy of start and end over the places of each window, halved; see `Objective` of the engine.

    The windows of a text count 1 together, so that a long context, most of whose windows hold no answer, does not teach
    above all to give none. (In the original code every window counts 1.)
    """

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of texts; a window counts as its share of its text."""
        return {"label": float(batch.labels.sum()) / 2}

    def loss_sums(self, model: BertForQuestionAnswering, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum over the texts (nats, fp32): a scalar with gradient."""
        logits = model.logits_at(batch, batch.places).float()  # [P, 2]
        starts, length = batch.sequence_starts.long(), batch.max_sequence_length
        sequence = torch.bucketize(batch.places, starts[1:], right=True)  # [P]
        slots = sequence * length + batch.places - starts[sequence]  # [P]
        # In a rectangle sums have one order, on a GPU too.
        padded = logits.new_full((batch.num_sequences * length, 2), _NEVER).index_copy(0, slots, logits)
        losses = -padded.view(-1, length, 2).log_softmax(1).view(-1, 2).index_select(0, slots)  # [P, 2]
        return {"label": (losses * batch.labels).sum() / 2}


# A logit of what is no place.
_NEVER = -1e9
