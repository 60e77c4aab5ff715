"""Vectors without fine-tuning: words weighted by TF-IDF, what an SVD makes of them, and the model as it was."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model.tasks import BertForVectors
from pretrain.engine.device import find_device
from pretrain.engine.folder import family_of, open_model

from ..batches import BatchMaker
from ..rows import Example
from ..settings import FinetuneError, FinetuneSettings
from ..simple_models import word_weights
from ..tasks.sequences import new_model
from .embedder import Embedder
from .single_texts import encode_single_texts

Pairs = tuple[Any, Any]
"""Unit vectors [n, H] of the first and of the second texts."""
# Dimensions of latent semantic analysis, as scikit-learn recommends.
_DIMENSIONS = 100
# Read at a time.
_TOKENS = 4096


def word_vectors(train: Sequence[Example], others: Mapping[str, Sequence[Example]]) -> list[dict[str, Pairs]]:
    """TF-IDF weights of words, and what a truncated SVD makes of them (latent semantic analysis, Deerwester et al.
    1990): for each the vectors of each split; zeros where nothing was learned.

    Args:
        train: what words and SVD are learned from.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize

    vectorizer = word_weights()
    texts = [text for row in train for text in row.every_text()]
    if not any(map(vectorizer.build_analyzer(), texts)):
        nothing = {split: (np.zeros((len(rows), 1), np.float32),) * 2 for split, rows in others.items()}
        return [nothing, nothing]
    words = vectorizer.fit_transform(texts)
    found = {split: _of_both(rows, vectorizer.transform) for split, rows in others.items()}
    size = min(_DIMENSIONS, *(side - 1 for side in words.shape))
    if size < 1:
        return [found, found]
    svd = TruncatedSVD(size, random_state=0).fit(words)
    reduced = {split: tuple(normalize(svd.transform(side)).astype(np.float32) for side in pair)
               for split, pair in found.items()}  # fmt: skip
    return [found, reduced]


def _of_both(rows: Sequence[Example], vectors_of: Any) -> Pairs:
    return vectors_of([row.text for row in rows]), vectors_of([row.text_pair or "" for row in rows])


def untuned_vectors(settings: FinetuneSettings, others: Mapping[str, Sequence[Example]]) -> dict[str, Pairs]:
    """The vectors of the model that the fine-tuning starts from, of length 1: as `finetune.embed` makes them; where it
    refuses the folder, the means of the last hidden states; where nothing is pretrained, those of the first seed.

    Raises:
        FinetuneError: the folder cannot be used.
    """
    if settings.from_scratch:
        return _means(new_model("vectors", settings, settings.seed), settings, others)
    length = None if settings.sequence_length == "auto" else settings.sequence_length
    try:
        embedder = Embedder(settings.model, settings.device, normalize=True, sequence_length=length)
    except FinetuneError:
        model = open_model(family_of(settings.model, FinetuneError).vectors, settings.model, FinetuneError)
        return _means(model, settings, others)
    return {split: _of_both(rows, embedder.embed) for split, rows in others.items()}


@torch.inference_mode()
def _means(
    model: BertForVectors, settings: FinetuneSettings, others: Mapping[str, Sequence[Example]]
) -> dict[str, Pairs]:
    device = find_device(settings.device)
    model = model.eval().to(device)
    tokenizer, longest = WordPieceTokenizer.load(settings.model), model.config.max_position_embeddings
    length = longest if settings.sequence_length == "auto" else min(longest, settings.sequence_length)
    found = {}
    for split, rows in others.items():
        encoded = encode_single_texts(rows, np.full(len(rows), np.nan), tokenizer, length)
        vectors = np.zeros((len(encoded.targets), model.config.hidden_size), np.float32)
        maker = BatchMaker(encoded, tokenizer, _TOKENS)
        for items, batch in maker.items_and_batches(np.arange(len(rows))):
            pooled = model(batch.to(device)).pooler_output
            vectors[items] = torch.nn.functional.normalize(pooled).cpu().numpy()
        found[split] = vectors[0::2], vectors[1::2]
    return found
