"""Pretraining: a prepared corpus to a BERT checkpoint, by masked language modelling and next sentence prediction."""

import os

# oneDNN and torch's layer over it each keep 1,024 kernels with their scratch memory, one for every new shape, and
# packed batches have ever new shapes: gigabytes that are hardly used again. Read when torch is loaded, so set before.
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "64")
