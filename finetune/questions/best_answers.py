"""The best answers of a text, out of start and end scores of the tokens in all of its windows.

What is made of a text is a row of float32 [1 + 3 B]: the log probability of no answer, and of each of the B best
answers its first character, the one behind its last, and its log probability (minus infinity where there are fewer).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import logsumexp

from .answers import Span
from .contexts import MOST_TOKENS, EncodedQuestions

NUM_BEST = 20
"""B: answers that are kept of a text."""
WIDTH = 1 + 3 * NUM_BEST
LONGEST_CONTEXT = 2**24
"""Characters: beyond them float32 knows not every whole number."""
CERTAIN = -1e4
"""The least null score: no answer is out of the question. The largest is its negative."""


class Best(NamedTuple):
    """Views of rows [n, 1 + 3 B]."""

    null: np.ndarray
    """[n], the log probability of no answer."""
    starts: np.ndarray
    """[n, B], the characters where answers start, the best answer first."""
    ends: np.ndarray
    """[n, B], the characters where they end, not included."""
    scores: np.ndarray
    """[n, B], their log probabilities."""


def best(outputs: np.ndarray) -> Best:
    """What the columns of rows are."""
    parts = (outputs[..., 1 + part * NUM_BEST : 1 + (part + 1) * NUM_BEST] for part in range(3))
    return Best(outputs[..., 0], *parts)


def row_of(null: float, spans: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """A row, with probabilities that are a softmax over no answer and the best answers, which are put first.

    Args:
        null: the score of no answer.
        spans: int [k, 2], characters; one that is there several times counts with its best score.
        scores: [k].
    """
    order = np.lexsort((spans[:, 1], spans[:, 0], -scores))
    spans, scores = spans[order], scores[order]
    _, firsts = np.unique(spans, axis=0, return_index=True)
    kept = np.sort(firsts)[:NUM_BEST]
    spans, scores = spans[kept], scores[kept]
    row = np.zeros(WIDTH, dtype=np.float32)
    found = best(row)
    total = logsumexp([null, *scores])
    row[0] = null - total
    found.scores[:] = -np.inf
    found.starts[: len(kept)], found.ends[: len(kept)], found.scores[: len(kept)] = *spans.T, scores - total
    return row


def best_answers(logits: np.ndarray, encoded: EncodedQuestions) -> np.ndarray:
    """The best answers of each text, float32 [n, 1 + 3 B] (Devlin et al. 2019, sections 4.2 and 4.3).

    The score of an answer is that of its start plus that of its end, both in one window, at most MOST_TOKENS apart; of
    several windows the best one counts. No answer has the least score that [CLS] has in a window, as start plus end.

    Args:
        logits: float32 [P, 2], of the start and the end at each place.
    """
    texts = np.searchsorted(encoded.text, np.arange(encoded.num_texts + 1))
    starts, lengths = encoded.sequences.b_start, encoded.sequences.b_length
    found = np.zeros((encoded.num_texts, WIDTH), dtype=np.float32)
    for text, (begin, end) in enumerate(zip(texts[:-1], texts[1:], strict=True)):
        null, spans, scores = np.inf, [], []
        for window in range(begin, end):
            of_window = logits[encoded.bounds[window] : encoded.bounds[window + 1]].astype(np.float64)
            characters = encoded.characters[starts[window] : starts[window] + lengths[window]]
            # White space that is a token by itself is no answer, and none begins or ends with it.
            of_window[1:][characters[:, 0] == characters[:, 1]] = -np.inf
            answers, score = _answers_of_window(of_window[1:], characters)
            spans.append(answers)
            scores.append(score)
            null = min(null, of_window[0].sum())
        found[text] = row_of(null, np.concatenate(spans), np.concatenate(scores))
    return found


def _answers_of_window(logits: np.ndarray, characters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best answers of one window: at least NUM_BEST different ones, or all that the window has.

    Args:
        logits: [T, 2], the scores of each token as the first and as the last one of an answer.
        characters: [T, 2], where each token starts and ends; tokens may share a character, as the letters of a Korean
            syllable do.

    Returns:
        (where each answer starts and ends [k, 2], its score [k]); an answer may occur several times.
    """
    count = 2 * NUM_BEST
    while True:
        first, last, scores = best_spans(logits[:, 0], logits[:, 1], count)
        found = np.stack([characters[first, 0], characters[last, 1]], axis=1)
        if len(first) < count or len(np.unique(found, axis=0)) >= NUM_BEST:
            return found, scores
        count *= 2


def best_spans(start: np.ndarray, end: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First tokens, last tokens and scores of the best spans of at most MOST_TOKENS tokens, in no order.

    Args:
        start, end: [T], the scores of each token as the first and as the last one.
        count: how many spans; fewer where there are fewer.
    """
    padded = np.append(end, np.full(MOST_TOKENS, -np.inf))
    # Row t has the ends t, t + 1 and so on.
    ends = sliding_window_view(padded, MOST_TOKENS)[: len(end)]
    scores = (start[:, None] + ends).ravel()
    chosen = np.argpartition(-scores, count - 1)[:count] if len(scores) > count else np.arange(len(scores))
    chosen = chosen[np.isfinite(scores[chosen])]
    first, more = np.divmod(chosen, MOST_TOKENS)
    return first, first + more, scores[chosen]


def mean_answers(outputs: Sequence[np.ndarray], with_null: bool = True) -> np.ndarray:
    """What several models make of texts together: the mean of the probabilities that each gives to an answer, 0 where
    it is not among its best ones: [n, 1 + 3 B].

    Args:
        outputs: of each model [n, 1 + 3 B], of the same texts.
        with_null: whether a question may have no answer; if not, each model's answers have all of its probability.
    """
    found = np.zeros_like(outputs[0])
    for text, rows in enumerate(zip(*outputs, strict=True)):
        together: dict[Span, float] = {}
        for output in rows:
            row, (_, each) = best(output), probabilities(output, with_null)
            for start, end, probability in zip(row.starts, row.ends, each, strict=True):
                if probability > 0:
                    together[start, end] = together.get((start, end), 0.0) + float(probability)
        null = float(logsumexp([row[0] for row in rows]))
        spans, scores = np.array([*together], dtype=np.int64).reshape(-1, 2), np.log(np.array([*together.values()]))
        found[text] = row_of(null, spans, scores)
    return found


def null_scores(outputs: np.ndarray) -> np.ndarray:
    """The log probability of no answer minus that of the best answer, which is the difference of their scores: float64
    [n]."""
    found = best(outputs)
    # Both can be minus infinity in what is no model's.
    with np.errstate(invalid="ignore"):
        difference = found.null.astype(np.float64) - found.scores[..., 0]
    return np.clip(np.nan_to_num(difference, nan=0.0), CERTAIN, -CERTAIN)


def probabilities(outputs: np.ndarray, with_null: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of no answer [n], and of the best answers [n, B]; without `with_null` the latter are all there is."""
    found = best(outputs.astype(np.float64))
    none = found.null if with_null else np.full_like(found.null, -np.inf)
    largest = np.maximum(none, found.scores[..., 0])
    largest = np.where(np.isfinite(largest), largest, 0.0)
    null, each = np.exp(none - largest), np.exp(found.scores - largest[..., None])
    total = null + each.sum(-1)
    safe = np.where(total > 0, total, 1.0)
    return null / safe, each / safe[..., None]
