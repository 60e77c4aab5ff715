"""The loss of start and end scores beside that of one who reads no text: whether answers were learned at all."""

import numpy as np

from .contexts import EncodedQuestions


def span_losses(outputs: np.ndarray, encoded: EncodedQuestions) -> tuple[float, float]:
    """Mean over the texts, in nats, of what a training on answers minimises: of these scores, and of one who reads no
    text.

    That one knows how often the answer is not in a window, and takes the tokens of a context to be alike.

    Args:
        outputs: float [P, 2], logits of start and end at all places.
    """
    begins, sizes = encoded.bounds[:-1], np.diff(encoded.bounds)
    logits = outputs.astype(np.float64)
    logits -= np.repeat(np.maximum.reduceat(logits, begins), sizes, axis=0)
    normaliser = np.log(np.add.reduceat(np.exp(logits), begins))  # [S, 2]
    losses = np.repeat(normaliser, sizes, axis=0) - logits  # [P, 2]
    texts = float(encoded.targets.sum())  # Start and end of each text.
    absent = encoded.targets[begins].mean(1, dtype=np.float64)  # [S], 1 / windows of the text, or 0
    share = min(1.0, 2 * float(absent.sum()) / texts)
    weights = np.add.reduceat(encoded.targets, begins).mean(1, dtype=np.float64)  # [S]
    there = weights - absent
    # Where no window holds an answer, or all do, the other part of the sum is none.
    unread = -(absent * np.log(share or 1.0)) - there * np.log((1 - share or 1.0) / np.maximum(1, sizes - 1))
    return float((losses * encoded.targets).sum()) / texts, 2 * float(unread.sum()) / texts
