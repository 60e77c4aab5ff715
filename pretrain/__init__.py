"""Pretraining: a prepared corpus to a BERT checkpoint, by masked language modelling and next sentence prediction."""

from . import process

process.settle()
