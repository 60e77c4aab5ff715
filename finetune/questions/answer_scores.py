"""How good answers are: exact match and F1 by the rules of SQuAD, and from which score on no answer is given.

Rajpurkar et al. 2016 (section 6.1) and 2018; the rules are those of the evaluation script of SQuAD 2.0. The articles
that do not count are English ones.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..metrics import SMALLEST
from ..rows import Example
from .best_answers import CERTAIN, best, null_scores, probabilities

METRICS = ("f1", "exact_match", "loss")
OF_UNANSWERABLE = ("answerable_f1", "answerable_exact_match", "unanswerable_f1")
"""Besides the METRICS, where some questions have no answer."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Nobody sees what has no width, and tokenizers drop it.
_NO_WIDTH = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation + _NO_WIDTH)


def normalised(text: str) -> str:
    """The text as it is compared: in lower case, without ASCII punctuation, characters of no width and the words a, an
    and the, single blanks between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def gold_answers(example: Example) -> list[str]:
    """The normalised answers of a text, without those of which nothing is left; [""] for none."""
    texts = [normalised(example.text_pair[start:end]) for start, end in example.label or ()]
    return [text for text in texts if text] or [""]


def exact_match(given: str, gold: Sequence[str]) -> float:
    """1 where a normalised answer is one of the gold ones, else 0."""
    return float(given in gold)


def f1(given: str, gold: Sequence[str]) -> float:
    """The largest F1 of the words of a normalised answer and a gold one; 1 if both are empty, 0 if one of them is."""
    return max(_f1(given.split(), each.split()) for each in gold)


def _f1(given: list[str], gold: list[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    shared = (Counter(given) & Counter(gold)).total()
    return 2 * shared / (len(given) + len(gold))


def is_null(outputs: np.ndarray, threshold: float | None) -> np.ndarray:
    """Which texts are given no answer: bool [n].

    Args:
        threshold: of the null scores; None: where there is an answer, it is given.
    """
    has_none = np.isneginf(best(outputs).scores[..., 0])
    return has_none if threshold is None else has_none | (null_scores(outputs) > max(threshold, CERTAIN))


def best_threshold(examples: Sequence[Example], outputs: np.ndarray) -> float:
    """The threshold of the null scores with the best F1 on these texts, between two of their null scores."""
    rows = zip(examples, outputs, map(gold_answers, examples), strict=True)
    pairs = [(f1(_text(row, output, 0), gold), f1("", gold)) for row, output, gold in rows]
    scores = null_scores(outputs)
    order = np.argsort(scores, kind="stable")
    scores, (answered, null) = scores[order], np.array(pairs)[order].T
    # With the first k texts answered and the others not.
    totals = np.append(0, np.cumsum(answered)) + null.sum() - np.append(0, np.cumsum(null))
    totals[1:-1][scores[1:] == scores[:-1]] = -np.inf
    totals[: np.searchsorted(scores, CERTAIN, side="right")] = -np.inf
    ends = np.concatenate([[scores[0] - 1], (scores[:-1] + scores[1:]) / 2, [scores[-1] + 1]])
    return float(ends[totals.argmax()])


def _text(example: Example, output: np.ndarray, number: int) -> str:
    """An answer as it is compared; empty where there is none."""
    found = best(output)
    if np.isneginf(found.scores[number]):
        return ""
    return normalised(example.text_pair[int(found.starts[number]) : int(found.ends[number])])


def scores_of_texts(examples: Sequence[Example], outputs: np.ndarray, threshold: float | None) -> dict[str, np.ndarray]:
    """Of each text: `f1` and `exact_match` of what is given, `loss`, and `answerable`, whether it has an answer:
    float64 [n] each.

    The loss is the negative log, in nats, of the probability of all right ones among the best answers and none, where
    right is an exact match; probabilities below 1.2e-7 count as that.
    """
    of_null, of_each = probabilities(outputs, threshold is not None)
    found = np.zeros((4, len(examples)))
    for number, (example, null) in enumerate(zip(examples, is_null(outputs, threshold), strict=True)):
        gold, each = gold_answers(example), best(outputs[number])
        texts = [_text(example, outputs[number], k) for k in range(len(each.scores)) if each.scores[k] > -np.inf]
        given = "" if null else texts[0]
        right = sum(p for text, p in zip(texts, of_each[number], strict=False) if text in gold)
        right += of_null[number] if "" in gold else 0.0
        loss = np.log(1 / np.clip(right, SMALLEST, 1))
        found[:, number] = f1(given, gold), exact_match(given, gold), loss, bool(example.label)
    return dict(zip(("f1", "exact_match", "loss", "answerable"), found, strict=True))


def means(of_texts: dict[str, np.ndarray], chosen: np.ndarray | slice, with_null: bool) -> dict[str, float | None]:
    """The METRICS of some texts, and those OF_UNANSWERABLE, None where there is no such text.

    Args:
        of_texts: see `scores_of_texts`.
        chosen: numbers of texts, each as often as it counts.
    """
    found = {name: float(of_texts[name][chosen].mean()) for name in METRICS}
    if not with_null:
        return found
    has_answer = of_texts["answerable"][chosen] > 0
    parts = {"answerable_f1": ("f1", has_answer), "answerable_exact_match": ("exact_match", has_answer),
             "unanswerable_f1": ("f1", ~has_answer)}  # fmt: skip
    return found | {
        name: float(of_texts[column][chosen][part].mean()) if part.any() else None
        for name, (column, part) in parts.items()
    }
