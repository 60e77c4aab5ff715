"""Token ids to examples: pairs of sentences, masks, packed batches; pure functions of keys.

Shapes are written with the alphabet of the package `model`.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
"""Uniform random numbers of 64 bits (see `random_keys`)."""
