"""A BERT whose vocabulary has grown: embeddings and output biases for its new entries."""

import torch

from data_prep.vocabulary.extension import cut
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertForPreTraining


@torch.no_grad()
def extended(model: BertForPreTraining, old: WordPieceTokenizer, new: WordPieceTokenizer) -> BertForPreTraining:
    """The model with a row for each entry that `new` has behind those of `old`.

    A new entry starts as the mean of the pieces that it was spelled with, in the word embedding, which is the decoder's
    matrix too, and in the decoder's bias. The scores of the old entries for a text in old pieces stay the same.

    Args:
        model: its word embedding may have more rows than `old` has entries.
    """
    rows = max(model.config.vocab_size, new.vocab_size)
    grown = BertForPreTraining(model.config.changed(vocab_size=rows))
    before, after = dict(model.named_parameters()), dict(grown.named_parameters())
    for name, parameter in before.items():
        after[name][: len(parameter)].copy_(parameter)
    ids = {piece: number for number, piece in enumerate(old.vocabulary)}
    for number, entry in enumerate(new.vocabulary[old.vocab_size :], old.vocab_size):
        pieces = [ids[piece] for piece in cut(entry, ids)] or [old.unk_id]
        for old_rows, new_rows in zip(model.vocabulary_parameters(), grown.vocabulary_parameters(), strict=True):
            new_rows[number] = old_rows[pieces].mean(0)
    return grown


@torch.no_grad()
def lengthened(model: BertForPreTraining, length: int) -> BertForPreTraining:
    """The model with position embeddings for `length` tokens; the new ones begin as copies of the old, in order.

    Near positions look at each other in the copies as they did (Beltagy et al. 2020, section 5).
    """
    grown = BertForPreTraining(model.config.changed(max_position_embeddings=length))
    after = dict(grown.named_parameters())
    for name, parameter in model.named_parameters():
        rows = torch.arange(len(after[name])) % len(parameter)
        after[name].copy_(parameter[rows])
    return grown
