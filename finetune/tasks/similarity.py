"""Vectors of texts, near for those that are alike or belong together (Reimers and Gurevych 2019; Gao et al. 2021;
Radford et al. 2021)."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from data_prep.console.screen import say
from data_prep.durable import write_text
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import BertConfig
from model.bert import BertWithHead
from model.huggingface import PretrainedModel
from model.tasks import BertForVectors
from pretrain.engine.step import Objective

from ..auxiliary import Masking
from ..batches import BatchMaker, Encoded, LabelledBatch, TextStream
from ..metrics import regression_scores
from ..mistakes import MOST_MISTAKES, Misplaced, errors_markdown, largest_errors, misplaced_markdown
from ..pictures import draw_numbers
from ..rows import PAIR_COLUMNS, Columns, Example
from ..settings import FinetuneError, FinetuneSettings, LongText
from ..tokenizer import open_tokenizer
from ..vectors.contrast import CosineRegression, InBatchNegatives
from ..vectors.cosines import COLUMNS, COSINE, LOSS, OTHERS, RANK, of_pairs
from ..vectors.groups import GroupMaker, GroupStream
from ..vectors.sentence_model import SentenceModel
from ..vectors.single_texts import encode_single_texts, halves, numbers_of
from ..vectors.vector_baselines import untuned_vectors, word_vectors
from . import Card, HeldOut, Task
from .regression import SCORE
from .sequences import fine_tuned, new_model, number

TFIDF, SVD, UNTUNED = "TF-IDF", "TF-IDF + SVD", "not fine-tuned"
# What rows are.
TEXTS, SCORES, PAIRS = "texts", "scores", "pairs"
RANDOM = "random_cosine"
_SHOWN = {
    SCORES: {"Spearman": "spearman", "Pearson": "pearson"},
    PAIRS: {"MRR": "mrr", "recall at 1": "recall_1", "recall at 10": "recall_10"},
}


class Similarity(Task):
    """A vector for each text, the mean of its tokens, scaled to length 1.

    Training rows are texts alone, pairs with scores, or pairs that belong together; their columns tell which. Held-out
    rows may be any of these, independently of the training rows. They are evaluated as pairs: with scores, by the
    correlation of cosines and scores; without, by the rank of a text's partner among the second texts of its split.

    Args:
        learned: what the training rows are: TEXTS, SCORES or PAIRS; empty where that is not known.
        scale: the scores that are the cosines 0 and 1.
        judged_by: what the held-out rows are, those of the validation first: SCORES or PAIRS.
    """

    name = "similarity"
    label_columns = (
        "score", "similarity", "relatedness", "similarity_score", "relatedness_score", "label", "rating", "target",
        "value",
    )  # fmt: skip
    pair_columns = (
        *PAIR_COLUMNS, ("query", "document"), ("anchor", "positive"), ("title", "abstract"), ("title", "text"),
    )  # fmt: skip
    needs_labels, judges_other_rows, has_answers = False, True, False
    # As whatever else opens the model's folder.
    long_texts = ("head",)
    baseline_names, baselines_are = (TFIDF, SVD, UNTUNED), "without fine-tuning"
    lower_is_better = frozenset({RANDOM, "loss"})
    num_outputs = len(COLUMNS)

    def __init__(
        self, learned: str = "", scale: tuple[float, float] = (0.0, 1.0), judged_by: Sequence[str] = (SCORES, PAIRS)
    ):
        self.learned, self.scale = learned, scale
        self.judged_by = tuple(dict.fromkeys(judged_by))
        self.shown: dict[str, str] = {}
        for kind in self.judged_by:
            self.shown |= _SHOWN[kind]
        self.metrics = (*self.shown.values(), RANDOM, "loss")
        self.default_metric = next(iter(self.shown.values()))

    # --- rows

    def settled(self, columns: Columns) -> Columns:
        """A label is the score of a pair; that of a single text is not read."""
        return replace(columns, label=None) if len(columns.texts) == 1 else columns

    def label_of(self, row: Mapping[str, Any], column: str) -> float:
        """The score of a row; raises ValueError with what is wrong with it."""
        try:
            return number(row, column)
        except ValueError as problem:
            raise ValueError(f"{problem} (pairs that belong together have no column of this name)") from None

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "Similarity":
        """Raises FinetuneError where nothing can be learned of the rows, or options do not act on them."""
        if len(columns.texts) == 1:
            learned = TEXTS
        else:
            learned = PAIRS if columns.label is None else SCORES
        _refuse_options(settings, learned)
        _say_pooling(settings)
        if len({tuple(row.every_text()) for row in train}) < 2:
            raise FinetuneError(f"{settings.train} has no two different texts: give more rows")
        if learned != SCORES:
            return Similarity(learned)
        scores = self.targets(train)
        if scores.min() == scores.max():
            raise FinetuneError(
                f'"{columns.label}" of {settings.train} has no two different scores: give --label-column, or no such '
                "column if each pair belongs together"
            )
        return Similarity(SCORES, (float(scores.min()), float(scores.max())))

    def of_model(self, config: BertConfig) -> "Similarity":
        """Every such model gives vectors."""
        return self

    def facts(self) -> list[str]:
        """What is learned, and the scale."""
        return [self.name, self.learned, *map(repr, self.scale)]

    def with_held_out(self, held_out: Mapping[str, list[Example]]) -> tuple["Similarity", dict[str, list[Example]]]:
        """Of texts alone the halves are pairs. Where the training rows have no scores, the scale is that of the first
        held-out rows with some.

        Raises:
            FinetuneError: texts are of one word each, and have no halves.
        """
        rows = {split: _as_pairs(split, found) for split, found in held_out.items()}
        scores = {split: self.targets(found) for split, found in rows.items()}
        kinds = {split: PAIRS if np.isnan(found).any() else SCORES for split, found in scores.items()}
        scale, of_scores = self.scale, [scores[split] for split in rows if kinds[split] == SCORES]
        if self.learned != SCORES and of_scores:
            scale = float(of_scores[0].min()), float(of_scores[0].max())
        return Similarity(self.learned, scale, list(kinds.values())), rows

    def stratum(self, example: Example) -> str:
        """The fifth of the scale in which its score is."""
        return "" if self.learned != SCORES else str(min(4, int(5 * self._scaled(self.targets([example]))[0])))

    def describe(self, train: Sequence[Example]) -> list[str]:
        """What the rows are, and what is learned of them."""
        low, high = self.scale
        return {
            TEXTS: ["Texts alone: two passes over a text, with other dropout, are to be nearer to each other than to "
                    "the other texts of a group."],
            SCORES: [f"Pairs with scores from {low:g} to {high:g}, which are to be the cosines 0 and 1."],
            PAIRS: ["Pairs without scores: each text is to find the one beside it among those of a group."],
        }[self.learned]  # fmt: skip

    def _scaled(self, scores: np.ndarray) -> np.ndarray:
        """Scores as cosines."""
        low, high = self.scale
        return (scores - low) / ((high - low) or 1.0)

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """The scores: float64 [n], NaN for a row without one."""
        is_scored = [row.text_pair is not None and isinstance(row.label, float) for row in examples]
        return np.array(
            [row.label if scored else np.nan for row, scored in zip(examples, is_scored, strict=True)], np.float64
        )

    def encode(
        self, examples: Sequence[Example], tokenizer: TextTokenizer, sequence_length: int, long_text: LongText
    ) -> Encoded:
        """A sequence for each text (see `encode_single_texts`), with scores as cosines."""
        return encode_single_texts(examples, self._scaled(self.targets(examples)), tokenizer, sequence_length)

    def stream(self, train: Encoded, seed: int) -> TextStream:
        """Groups of texts, but of pairs with scores."""
        return super().stream(train, seed) if self.learned == SCORES else GroupStream(train, seed)

    def maker(self, train: Encoded, tokenizer: TextTokenizer, micro_batch_tokens: int,
              places: Sequence[str] = (), masking: Masking | None = None) -> BatchMaker:  # fmt: skip
        """Of groups one that reads a text alone twice."""
        if self.learned == SCORES:
            return super().maker(train, tokenizer, micro_batch_tokens, places, masking)
        return GroupMaker(train, tokenizer, micro_batch_tokens, places, masking, 1 + (self.learned == TEXTS))

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForVectors:
        """The encoder alone (see `Task.build_model`)."""
        return new_model("vectors", settings, seed)

    def open_model(self, folder: Path) -> BertForVectors:
        """Raises FinetuneError where the folder is damaged, or makes its vectors in another way."""
        said = SentenceModel.read(folder)
        if said.pooling != "mean":
            raise FinetuneError(f"{folder} takes no mean of a text's tokens: ask it with python -m finetune.embed")
        return fine_tuned("vectors", folder)

    def kept(self, model: BertWithHead) -> PretrainedModel:
        """The encoder, which transformers opens as a BertModel; labels are of a head that it had before."""
        model.bert.config = model.config.changed(id2label=None, num_labels=2, problem_type=None)
        return model.bert

    @property
    def deciding_metrics(self) -> Sequence[str]:
        """Of what the validation rows are."""
        return (*_SHOWN[self.judged_by[0]].values(), RANDOM, "loss")

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """A model is asked with pairs."""
        return tuple(columns) if len(columns) > 1 else self.pair_columns[0]

    def write_model_files(self, folder: Path, config: BertConfig, sequence_length: int) -> None:
        """How a vector is made, as sentence-transformers and `finetune.embed` read it."""
        SentenceModel("mean", True, sequence_length).write(folder, config.hidden_size)

    def objective(self, train: Encoded, settings: FinetuneSettings) -> Objective:
        """By what the rows are."""
        return CosineRegression() if self.learned == SCORES else InBatchNegatives(both_ways=self.learned == PAIRS)

    # --- judging

    def logits(self, model: BertWithHead, batch: LabelledBatch) -> Tensor:
        """The vectors of the texts: [N, H]."""
        vectors: Tensor = model(batch).pooler_output
        return vectors

    def outputs(self, logits: Tensor) -> Tensor:
        """Vectors of length 1: [N, H]."""
        return F.normalize(logits.float())

    def width(self, config: BertConfig) -> int:
        """H."""
        return config.hidden_size

    def judged(self, outputs: np.ndarray, encoded: Encoded) -> np.ndarray:
        """Cosines and places of the pairs (see `finetune.vectors.cosines.of_pairs`): [n, 4]; NaN for texts alone."""
        if len(outputs) != 2 * encoded.num_texts:
            return np.full((encoded.num_texts, self.num_outputs), np.nan, np.float32)
        numbers, scores = encoded.targets.T
        texts = numbers.astype(np.int64).reshape(-1, 2)
        return of_pairs(outputs[0::2], outputs[1::2], texts, is_ranked=bool(np.isnan(scores).any()))

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """Rows with scores: the correlations of cosines and scores; the loss is the squared error of the cosine.

        Rows without: mean reciprocal rank, recall at 1 and at 10; the loss is the negative log probability of the right
        text. Both: the cosine of random texts. Scores of the other kind of rows are None.
        """
        found: dict[str, float | None] = dict.fromkeys(self.metrics)
        others = outputs[:, OTHERS].astype(np.float64)
        found[RANDOM] = None if np.isnan(others).any() else float(others.mean())
        if not np.isnan(targets).any():
            cosines = outputs[:, COSINE].astype(np.float64)
            of_scores = regression_scores(targets, cosines)
            error = float(np.mean((self._scaled(targets) - cosines) ** 2))
            return found | {"spearman": of_scores["spearman"], "pearson": of_scores["pearson"], "loss": error}
        ranks = outputs[:, RANK].astype(np.float64)
        return found | {
            "mrr": float((1 / ranks).mean()),
            "recall_1": float((ranks <= 1).mean()),
            "recall_10": float((ranks <= 10).mean()),
            "loss": float(outputs[:, LOSS].astype(np.float64).mean()),
        }

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """Words weighted by TF-IDF, the same after an SVD, and the mean vectors of the model as it was."""
        vectors = [*word_vectors(train, held_out), untuned_vectors(settings, held_out)]
        found: dict[str, dict[str, np.ndarray]] = {}
        for name, of_splits in zip(self.baseline_names, vectors, strict=True):
            found[name] = {}
            for split, rows in held_out.items():
                texts = numbers_of([text for row in rows for text in row.every_text()]).reshape(-1, 2)
                is_ranked = bool(np.isnan(self.targets(rows)).any())
                found[name][split] = of_pairs(*of_splits[split], texts, is_ranked)
        return found

    def doubt(self, target: np.ndarray, output: np.ndarray) -> float:
        """How far the cosine is off the score, or how improbable the right text is."""
        if np.isnan(target):
            return float(1 - np.exp(-output[LOSS]))
        return float(abs(self._scaled(target) - output[COSINE]))

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """What the rows are, the scale of scores, and how many different texts are searched."""
        return {
            "learned_from": self.learned,
            "scale": list(self.scale),
            "candidates": {split: len(np.unique(numbers_of([row.text_pair or "" for row in rows])))
                           for split, rows in held_out.items() if np.isnan(self.targets(rows)).any()},
        }  # fmt: skip

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """mistakes.md: the pairs whose cosine is farthest off the score, with predicted.png; or those that are found
        last."""
        with_text = settings.show_text == "yes"
        if np.isnan(shown.targets).any():
            ranks = shown.outputs[:, RANK]
            last = [place for place in np.argsort(-ranks, kind="stable")[:MOST_MISTAKES] if ranks[place] > 1]
            rows = [(shown.examples[place], int(ranks[place])) for place in last]
            found = [Misplaced(row.place, row.text, row.text_pair, rank) for row, rank in rows]
            write_text(out / "mistakes.md", misplaced_markdown(found, with_text))
            return
        gold, cosines = self._scaled(shown.targets), shown.outputs[:, COSINE]
        draw_numbers(gold, cosines, out / "predicted.png", f"cosines of {shown.split} pairs, seed {shown.seed}")
        farthest = largest_errors(shown.examples, gold, cosines)
        write_text(out / "mistakes.md", errors_markdown(farthest, with_text))

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """What a cosine is worth, among how many texts was searched, and where the rest is."""
        sentences = []
        if shown.split in results["candidates"]:
            sentences.append(f"Each text was sought among {results['candidates'][shown.split]:,} different ones.")
        now = self.scores(shown.targets, shown.outputs)[RANDOM]
        before = results["baselines"].get(UNTUNED, {}).get(shown.split)
        if now is not None:
            earlier = f", {before[RANDOM]['mean']:.2f} before fine-tuning" if before else ""
            sentences.append(f"Two of these texts at random have a cosine of {now:.2f}{earlier}: judge a cosine beside "
                             "that, not by itself.")  # fmt: skip
        return [
            *sentences,
            f"\nThe pairs that are farthest off are in {out / 'mistakes.md'}. Vectors of texts:",
            f"  python -m finetune.embed --model {shlex.quote(str(out / 'final'))} FILE --out vectors.npy",
        ]

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """What the vectors were learned from stands below the scores."""
        example = """import torch
from transformers import AutoModel, AutoTokenizer

folder = "path/to/this/folder"
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
batch = tokenizer(["One text.", "Another."], padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    hidden = model(**batch).last_hidden_state
is_token = batch["attention_mask"][..., None]
vectors = torch.nn.functional.normalize((hidden * is_token).sum(1) / is_token.sum(1))
print("cosine", float(vectors[0] @ vectors[1]))"""
        low, high = results["scale"]
        learned = {
            TEXTS: "texts alone, by two passes with other dropout",
            SCORES: f"pairs with scores from {low:g} to {high:g}",
            PAIRS: "pairs that belong together",
        }[results["learned_from"]]
        shown = results[split][RANDOM]["mean"]
        random = "" if shown is None else f" Two {split} texts at random have a cosine of {shown:.2f}."
        return Card(
            kind="sentence-similarity",
            name="vectors of the texts of a domain",
            title="Vectors of texts",
            findings=f"Learned from {learned}; a vector is the mean of a text's tokens, scaled to length 1, as "
            f"`sentence_transformers.SentenceTransformer` reads from this folder.{random}",
            metrics=tuple(name for name in self.shown.values() if results[split][name]["mean"] is not None),
            example=example,
        )

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The cosine of the pair."""
        return {SCORE: round(float(output[COSINE]), 6)}

    def shown_targets(self, targets: np.ndarray) -> str:
        """The score as a cosine, where there is one."""
        return "text" if np.isnan(targets[0, 1]) else f"cosine {targets[0, 1]:.3g}"


def _refuse_options(settings: FinetuneSettings, learned: str) -> None:
    """Raises FinetuneError where options were given that do not act on vectors, or on such rows."""
    of_head = {"--hidden-layers": settings.hidden_layers, "--freeze-encoder": settings.freeze_encoder,
               "--unfreeze": settings.unfreeze}  # fmt: skip
    for option, is_given in of_head.items():
        if is_given:
            raise FinetuneError(f"{option} is of a head, which a model for similarity lacks: leave it out")
    if learned != SCORES and settings.batch_size == 1:
        raise FinetuneError("--batch-size 1 leaves no other text to compare a text with, so nothing is learned: give 2 "
                            "or more")  # fmt: skip
    if learned != TEXTS:
        return
    if settings.label_column is not None and not (settings.validation or settings.test):
        raise FinetuneError(
            "--label-column names scores of pairs, and there is one column of texts: give two with --text-column"
        )
    if settings.dropout == 0:
        raise FinetuneError(
            "--dropout 0 makes both passes over a text the same, but without pairs the model learns from their "
            "difference: leave it at 0.1, or give pairs of texts"
        )


def _say_pooling(settings: FinetuneSettings) -> None:
    """Say where the vectors of the model to start from are made in another way than those that are learned."""
    if settings.from_scratch:
        return
    said = SentenceModel.found(Path(settings.model))
    ways = {"mean": "", "cls": "are those of [CLS]", "max": "have the largest value of all tokens in each place"}
    if way := ways[said.pooling] if said else "are made in a way that only sentence-transformers knows":
        say(f"The vectors of {settings.model} {way}; those that are learned here are means of all tokens.")
    if said and said.lowercase and not open_tokenizer(settings.model).lowercase:
        say(f"sentence-transformers puts texts in lower case before the tokenizer of {settings.model}; here they stay "
            "as they are.")  # fmt: skip


def _as_pairs(split: str, rows: list[Example]) -> list[Example]:
    """Rows of pairs as they are; of texts the halves, which is said."""
    if rows[0].text_pair is not None:
        return rows
    cut = [half for row in rows if (half := halves(row))]
    if len(cut) < 2:
        raise FinetuneError(f"the {split} texts are of one word each and cannot be cut in half to be found again: give "
                            f"--{split} with pairs of texts")  # fmt: skip
    left = f", {len(rows) - len(cut):,} of a single word left out" if len(cut) < len(rows) else ""
    say(f"No {split} pairs were given: the first half of a text is to find its second half ({len(cut):,} texts{left}).")
    return cut
