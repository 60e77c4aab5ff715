"""Quotients of arrays, and what they are where there is nothing to divide by."""

from collections.abc import Mapping

import numpy as np


def ratio(part: np.ndarray, whole: np.ndarray, of_nothing: float = 0.0) -> np.ndarray:
    """part / whole, or `of_nothing` where that is 0."""
    return np.divide(part, whole, out=np.full_like(part, of_nothing), where=whole > 0)


def defined_ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, NaN where that is 0: not defined."""
    return ratio(part, whole, of_nothing=np.nan)


def mean_of_defined(values: np.ndarray) -> np.ndarray:
    """Over the last axis, without NaN; NaN where there is nothing else."""
    is_defined = ~np.isnan(values)
    return defined_ratio(np.where(is_defined, values, 0).sum(-1), is_defined.sum(-1).astype(float))


def of_one_draw(scores: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """Those of the first draw, as numbers; None for NaN."""
    return {name: None if np.isnan(values[0]) else float(values[0]) for name, values in scores.items()}
