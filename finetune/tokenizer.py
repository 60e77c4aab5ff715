"""The tokenizer of a model folder, of the kind that its family has."""

from pathlib import Path

from data_prep.vocabulary.text_tokenizer import TextTokenizer
from data_prep.vocabulary.transformers_tokenizer import TransformersTokenizer
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model.families import read_config
from pretrain.engine.folder import family_of, model_mistakes

from .settings import FinetuneError


def open_tokenizer(folder: str | Path) -> TextTokenizer:
    """BERT's WordPiece, or that of a model that transformers computes.

    Raises:
        FinetuneError, PrepError: the folder holds no model, or no tokenizer that goes with it.
    """
    is_wrapped = family_of(folder, FinetuneError).is_wrapped
    with model_mistakes(FinetuneError):
        has_segments = read_config(folder).type_vocab_size > 1
    if is_wrapped:
        return TransformersTokenizer.load(folder, has_segments)
    tokenizer = WordPieceTokenizer.load(folder)
    tokenizer.tells_segments = has_segments
    return tokenizer
