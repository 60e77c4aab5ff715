"""A tag for each word: the names in a text, or parts of speech (Devlin et al. 2019, section 5.3)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from data_prep.durable import write_text
from data_prep.text.cells import TEXT_COLUMNS, is_text, parsed_cell
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import BertConfig, BertForTokenClassification
from pretrain.engine.model_card import table
from pretrain.engine.step import Objective

from .. import report
from ..batches import Encoded, LabelledBatch
from ..collapse import Collapse, collapse_of
from ..entities import taggers
from ..entities.decoder import CONLL, TagDecoder, conll, words_of
from ..entities.tag_metrics import per_type, tagging_scores, tagging_scores_of_draws
from ..entities.tagged_rows import are_tags, tagged_example
from ..entities.tags import (
    AS_LEARNED,
    IO,
    OUTSIDE,
    PLAIN,
    SCHEMES,
    TagScheme,
    entities,
    parts,
    respelt,
    scheme_of_labels,
)
from ..mistakes import MOST_MISTAKES, Mistake, mistakes_markdown
from ..names import cell
from ..rows import BadRows, Columns, Example
from ..settings import FinetuneError, FinetuneSettings, LongText
from ..words import encode_words
from . import Card, Form, HeldOut, Task, entropy
from .sequences import drawn_items, fine_tuned, items_of_texts, labels_of, new_model, unknown

DICTIONARY, WORDS, CRF = "dictionary of the training entities", "most frequent tag of the word", "CRF on word shapes"
MOST_TYPES_SHOWN = 50


class Tagging(Task):
    """A tag for each word.

    Args:
        labels: the names of the tags, once they are known; entities in IOB2.
        scheme: in which the tags of the training rows were written, and those of predictions are.
        counts: of the types among the training rows.
        is_strict: whether entities begin with B- alone (see `TagDecoder`).
    """

    name = "tagging"
    label_columns = ("tags", "ner_tags", "pos_tags", "label", "labels", "entities", "spans")
    text_columns = ("tokens", "words", *TEXT_COLUMNS)
    takes_pairs, takes = False, frozenset({"teacher"})
    long_texts, prediction_holds_text = ("windows",), True
    shown = {
        "strict F1": "strict_f1", "strict precision": "strict_precision", "strict recall": "strict_recall",
        "lenient F1": "f1", "word accuracy": "accuracy",
    }  # fmt: skip
    metrics = ("strict_f1", "strict_precision", "strict_recall", "f1", "precision", "recall", "accuracy", "loss")
    default_metric = "strict_f1"

    def __init__(
        self,
        labels: Sequence[str] = (),
        scheme: TagScheme = AS_LEARNED,
        counts: Mapping[str, int] | None = None,
        is_strict: bool = True,
    ):
        self.labels, self.scheme, self.counts = list(labels), scheme, counts or {}
        self.decoder = TagDecoder(self.labels, scheme, is_strict)
        if self.of_words:
            self.shown = {"word accuracy": "accuracy", "macro-F1": "macro_f1"}
            self.metrics, self.default_metric = ("accuracy", "macro_f1", "loss"), "accuracy"

    @property
    def of_words(self) -> bool:
        """Whether every tag is a class of words, not of entities."""
        return self.scheme.of_words

    # --- rows

    def usual_text_columns(self, sample: Sequence[Mapping[str, Any]], label: str | None) -> Sequence[str]:
        """Words where they have tags; where entities have places, the text that these are of."""
        of_words = any(are_tags(parsed_cell(row.get(label))) for row in sample) if label else True
        plain = [name for name in self.text_columns if any(isinstance(row.get(name), str) for row in sample)]
        lists = [name for name in self.text_columns if any(are_tags(parsed_cell(row.get(name))) for row in sample)]
        return [*lists, *plain] if of_words else [*plain, *lists]

    def example(self, place: str, row: Mapping[str, Any], columns: Columns) -> Example:
        """A row of words with a tag each, or of a text with the places of its entities.

        Raises:
            ValueError: with what is wrong with it.
        """
        return tagged_example(place, row, columns)

    def label_of(self, row: Mapping[str, Any], column: str) -> Any:
        """The labels of a row are read with its words (see `example`)."""
        return row.get(column)

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "Tagging":
        """Raises FinetuneError where there are not two different tags, or some with B- and I- and some without."""
        scheme, show_text = TagScheme.of([example.label for example in train]), settings.show_text == "yes"
        for example in train:
            if problem := scheme.oddity(example.label, show_text):
                raise FinetuneError(f"{example.place} has {problem}: mend the row")
        names = sorted({tag for example in train for tag in scheme.read(example.label)} | {OUTSIDE})
        counts = Counter(name for example in train for name in _types(scheme.read(example.label)))
        if scheme.of_words:
            names.remove(OUTSIDE)
        else:
            # Whatever begins may go on.
            types = sorted(_types(names))
            names = [OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI")]
        where, remedy = f'"{columns.label}" of {settings.train}', "name the column of tags with --label-column"
        if not show_text and any(map(is_text, names)):
            raise FinetuneError(f"{where} holds texts where tags should be, which would be shown: {remedy}")
        if len(names) > max(_MANY, len(train)):
            raise FinetuneError(f"{where} has {len(names):,} different tags in {len(train):,} rows: {remedy}")
        if len(names) < 2:
            raise FinetuneError(f"{where} has no entity and no two tags: {remedy}")
        return Tagging(names, scheme, counts)

    def of_model(self, config: BertConfig) -> "Tagging":
        """The tags are the label names of the model."""
        names = labels_of(config)
        return Tagging(names, TagScheme(scheme_of_labels(names)), is_strict=False)

    def facts(self) -> list[str]:
        """The names of the tags and their scheme."""
        return [self.name, self.scheme.name, *self.labels]

    def usable(self, examples: Iterable[Example], bad: BadRows, show_text: bool) -> Iterator[Example]:
        """Those of known tags alone."""
        known = set(self.labels)
        for example in examples:
            if problem := self.scheme.oddity(example.label, show_text):
                bad(example.place, f"has {problem}")
            elif others := set(self.scheme.read(example.label)) - known:
                bad(example.place, unknown("tag", min(others), self._types(), show_text))
            else:
                yield example

    def stratum(self, example: Example) -> str:
        """Its rarest type of entities."""
        types = set() if self.of_words else _types(self.scheme.read(example.label))
        return min(types, key=lambda name: (self.counts[name], name), default="")

    def describe(self, train: Sequence[Example]) -> list[str]:
        """The scheme, and how many entities of each type there are."""
        num_words = sum(len(example.words) for example in train)
        more = [_RESPELT.format(*pair)] if self.scheme.name in (IO, PLAIN) and (pair := respelt(self._types())) else []
        if self.of_words:
            more += [_NUMBERS] if all(map(str.isdigit, self.labels)) else []
            return [f"{len(self.labels)} tags of words, {num_words:,} words.", *more]
        counts = Counter(entity.type for example in train for entity in entities(self.scheme.read(example.label)))
        shown = ", ".join(f"{name:.40} {number:,}" for name, number in counts.most_common(12))
        others = f" and {len(counts) - 12} more" if len(counts) > 12 else ""
        found = [f"Tags in {self.scheme.name}, {num_words:,} words; entities: {shown}{others}.", *more]
        if num_widened := sum(example.num_widened for example in train):
            found.append(
                f"{num_widened:,} of {counts.total():,} entities begin or end inside a word, and count as the whole "
                "word in training and in scores. If you want it otherwise, cut the texts into words with a tag each."
            )
        return found

    def _types(self) -> list[str]:
        return self.labels if self.of_words else sorted(_types(self.labels))

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """The text of each word and the place of its tag among the labels: int64 [I, 2]; O for one without a label."""
        ids = {name: place for place, name in enumerate(self.labels)}
        rows = [
            (number, ids[tag])
            for number, example in enumerate(examples)
            for tag in (self.scheme.read(example.label) if example.label else [self.labels[0]] * len(example.words))
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)

    def encode(
        self, examples: Sequence[Example], tokenizer: TextTokenizer, sequence_length: int, long_text: LongText
    ) -> Encoded:
        """Every word, in overlapping windows of long texts."""
        words = [(example.text, example.words) for example in examples]
        return encode_words(words, self.targets(examples), tokenizer, sequence_length)

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForTokenClassification:
        """The encoder under a new head of a row for each tag (see `Task.build_model`)."""
        names = dict(enumerate(self.labels))
        return new_model("token_classification", settings, seed, id2label=names)

    def open_model(self, folder: Path) -> BertForTokenClassification:
        """Raises FinetuneError where the folder is damaged, or its head was never trained."""
        return fine_tuned("token_classification", folder)

    def objective(self, train: Encoded, settings: FinetuneSettings) -> "TagsObjective":
        """The cross entropy of the words' tags."""
        return TagsObjective()

    def collapse(self, train: Encoded, outputs: np.ndarray, objective: Objective, rate: float) -> Collapse | None:
        """A loss at the entropy of the tags, or one tag for every word."""
        return collapse_of(train.targets[:, 1], outputs, None, rate, "word", "tag")

    # --- judging

    def logits(self, model: BertForTokenClassification, batch: LabelledBatch) -> Tensor:
        """Of the first token of each word: [P, C]."""
        return model.logits_at(batch, batch.places)

    def outputs(self, logits: Tensor) -> Tensor:
        """Probabilities of the tags."""
        return logits.float().softmax(-1)

    def of_texts(self, outputs: np.ndarray, examples: Sequence[Example]) -> list[np.ndarray]:
        """[W, C] of the W words of each text: as many as there are."""
        return items_of_texts(outputs, [len(example.words) for example in examples])

    def drawn(self, targets: np.ndarray, outputs: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The words of these texts; every copy of a text is a text of its own."""
        return drawn_items(targets, outputs, texts)

    def decision(self) -> dict[str, Any]:
        """The scheme of the training rows, which predictions are written in."""
        return {"scheme": self.scheme.name, **({} if self.scheme.has_types else {"has_types": False})}

    def with_decision(self, decision: Mapping[str, Any]) -> "Tagging":
        """Predictions in the scheme of training; of a folder of transformers in that of its labels, of which it is not
        known what an I- that continues nothing means there.

        Raises:
            FinetuneError: there is no such scheme.
        """
        name, has_types = decision.get("scheme", self.scheme.name), decision.get("has_types", True)
        if name not in SCHEMES or not isinstance(has_types, bool):
            raise FinetuneError(f"the model's tags are in no known scheme ({name!r:.42}): fine-tune again")
        scheme = TagScheme(name, has_types)
        return Tagging(self.labels, scheme, self.counts, is_strict="scheme" in decision)

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """See `finetune.entities.tag_metrics.tagging_scores`."""
        return tagging_scores(targets, outputs, self.labels, self.of_words)

    def scores_of_draws(
        self, targets: np.ndarray, outputs: np.ndarray, draws: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """See `finetune.entities.tag_metrics.tagging_scores_of_draws`."""
        return tagging_scores_of_draws(targets, outputs, self.labels, self.of_words, draws)

    @property
    def baseline_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """A dictionary, and a CRF where python-crfsuite is installed."""
        return (WORDS if self.of_words else DICTIONARY, *([CRF] if taggers.has_crf() else []))

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """What a user would take without a BERT (see `finetune.entities.taggers`)."""
        words, tags = [words_of(row) for row in train], [list(self.scheme.read(row.label)) for row in train]
        others = [words_of(row) for rows in held_out.values() for row in rows]
        simple = taggers.most_frequent if self.of_words else taggers.dictionary
        found = {self.baseline_names[0]: [taggers.one_hot(t, self.labels) for t in simple(words, tags, others)]}
        if taggers.has_crf():
            found[CRF] = list(taggers.crf(words, tags, others, self.labels))
        ends = np.cumsum([len(rows) for rows in held_out.values()])
        return {
            name: {
                split: np.concatenate([np.zeros((0, self.num_outputs), np.float32), *each[end - len(rows) : end]])
                for (split, rows), end in zip(held_out.items(), ends, strict=True)
            }
            for name, each in found.items()
        }

    def uncertainty(self, outputs: np.ndarray) -> tuple[float, float]:
        """That of the word of which the models are the least sure."""
        if not outputs.shape[1]:
            return 0.0, 0.0
        of_mean, of_each = entropy(outputs.mean(0)), entropy(outputs).mean(0)
        place = int(of_mean.argmax())
        return float(of_mean[place]), float(of_mean[place] - of_each[place])

    def doubt(self, target: np.ndarray, output: np.ndarray) -> float:
        """That of its most doubtful word."""
        return float(1 - output[np.arange(len(output)), target[:, 1]].min()) if len(output) else 0.0

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """The tags, their scheme, and the scores of each type."""
        rows = per_type(shown.targets, shown.outputs, self.labels, self.of_words)
        return {"labels": self.labels, "scheme": self.scheme.name, "per_type": {shown.split: rows}}

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """mistakes.md, and for conlleval and people SPLIT.conll: word, gold and predicted tag."""
        decoder, written = self.decoder, self.scheme.written
        gold = [written(decoder.names(ids)) for ids in self.of_texts(shown.targets[:, 1], shown.examples)]
        given = [written(decoder.tags(output)) for output in self.of_texts(shown.outputs, shown.examples)]
        worst = self._mistakes(shown, settings.show_text == "yes")
        write_text(out / "mistakes.md", mistakes_markdown(worst, settings.show_text == "yes"))
        columns = out / f"{shown.split}.conll"
        if settings.show_text == "no":
            columns.unlink(missing_ok=True)
        else:
            rows = zip(shown.examples, gold, given, strict=True)
            sentences = (conll(words_of(example), *tags) for example, *tags in rows)
            write_text(columns, "\n".join(sentences))

    def _mistakes(self, shown: HeldOut, with_text: bool) -> list[Mistake]:
        """The surest of the entities, or of the words, that were given, or left out, wrongly."""
        found = []
        rows = zip(
            shown.examples, self.of_texts(shown.targets[:, 1], shown.examples),
            self.of_texts(shown.outputs, shown.examples), strict=True,
        )  # fmt: skip
        for example, ids, output in rows:
            sure, words = output.max(1), words_of(example)
            if self.of_words:
                for place in np.flatnonzero(output.argmax(1) != ids):
                    tags = (self.labels[ids[place]], self.labels[output[place].argmax()])
                    names = (f"{tag} at word {place + 1}" for tag in tags)
                    found.append(Mistake(example.place, example.text, None, *names, float(sure[place])))
                continue
            both = self.decoder.names(ids), self.decoder.tags(output)
            gold, given = (set(self.decoder.entities(tags)) for tags in both)
            for entity in sorted(gold ^ given):
                shown_words = f": {' '.join(words[entity.start : entity.end])}" if with_text else ""
                name = f"{entity.type} at word {entity.start + 1}{shown_words}"
                names = (name, "none such") if entity in gold else ("none such", name)
                surety = float(sure[entity.start : entity.end].mean())
                found.append(Mistake(example.place, example.text, None, *names, surety))
        return sorted(found, key=lambda mistake: -mistake.probability)[:MOST_MISTAKES]

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """The scores of each type, and where the mistakes are."""
        what, rows = ("tag" if self.of_words else "type"), results["per_type"][shown.split]
        sentences = []
        if len(rows) <= MOST_TYPES_SHOWN:
            which = f"seed {shown.seed}, which is kept" if seeds > 1 else f"by {what}"
            sentences.append(f"\n{shown.split} texts, {which}:\n{report.per_class_table(rows, what, self._counted)}")
        sentences.append(f"\nThe most confident mistakes are in {out / 'mistakes.md'}.")
        return sentences

    @property
    def _counted(self) -> str:
        return "words" if self.of_words else "entities"

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """The scores of each type stand below those of all."""
        rows = [
            (cell(row["label"]), *(f"{row[name]:.3f}" for name in report.scores_of(row)),
             f"{row['support']:,}")
            for row in results["per_type"][split]
        ]  # fmt: skip
        what = "tag" if self.of_words else "type"
        example = """from transformers import pipeline

tag = pipeline("token-classification", model="path/to/this/folder", aggregation_strategy="first")
print(tag("One text."))"""
        return Card(
            kind="token-classification",
            name="a tagger of a domain",
            title=f"A tagger of words: {', '.join(self._types()[:8])}{' ...' if len(self._types()) > 8 else ''}",
            findings=table((what, "precision", "recall", "F1", self._counted), rows)
            + ("" if self.of_words else _OF_STRAY_TAGS),
            metrics=tuple(
                name for name in ("strict_f1", "strict_precision", "strict_recall", "accuracy") if name in self.metrics
            ),
            example="" if config.classifier_hidden_layers else example,
        )

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """See `TagDecoder.prediction`."""
        return self.decoder.prediction(output, example)

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """See `TagDecoder.flat_prediction`."""
        return self.decoder.flat_prediction(output, example)

    def prediction_names(self, is_table: bool) -> list[str]:
        """The same for both."""
        return self.decoder.prediction_names()

    def written(self, form: str, row: Mapping[str, Any], example: Example, output: np.ndarray) -> str:
        """See `TagDecoder.written`."""
        return self.decoder.written(form, row, example, output)

    @property
    def forms(self) -> Mapping[str, Form]:  # type: ignore[override]
        """CoNLL columns, and those of the annotation tools, which know entities alone."""
        columns = {CONLL: Form("", "\n", "")}
        lines, array = Form("", "\n", "\n"), Form("[\n", ",\n", "\n]\n")
        return columns if self.of_words else columns | {"doccano": lines, "prodigy": lines, "label-studio": array}

    @property
    def num_outputs(self) -> int:
        """A probability for each tag."""
        return len(self.labels)

    def shown_targets(self, targets: np.ndarray) -> str:
        """The tags of the words."""
        return " ".join(self.decoder.names(targets[:, 1]))


_OF_STRAY_TAGS = """

A tag I- that continues nothing counts as no entity (seqeval's strict mode); the pipeline below begins one there."""
_RESPELT = ('Warning: the tags "{}" and "{}" look like the beginning and the inside of one type, and are taken for two '
            "types: write them as B-TYPE and I-TYPE.")  # fmt: skip
_NUMBERS = "Tags are numbers, so nothing is known of entities: give the names of the tags for scores of entities."
# So many tags may be there however few the rows are.
_MANY = 200


def _types(tags: Iterable[str]) -> set[str]:
    """The types of entities with these tags."""
    return {parts(tag)[1] for tag in tags} - {OUTSIDE}


class TagsObjective:
    """The cross entropy of the right tag; see `Objective` of the engine."""

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of words."""
        return {"label": float(batch.weights.sum())}

    def loss_sums(self, model: BertForTokenClassification, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum of the negative log likelihoods (nats, fp32): a scalar with gradient."""
        return self.sums_of(model.logits_at(batch, batch.places), batch)

    def sums_of(self, logits: Tensor, batch: LabelledBatch) -> dict[str, Tensor]:
        """The same of logits [P, C]."""
        losses = F.cross_entropy(logits.float(), batch.labels[:, 1], reduction="none")
        return {"label": (losses * batch.weights).sum()}
