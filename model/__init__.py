"""BERT in plain torch: a packed encoder, the heads of pretraining and of the usual tasks, transformers'
folders.

Shapes are written with one alphabet everywhere:

    T  tokens of a packed batch        H  hidden size
    N  sequences                       A  attention heads
    M  masked tokens                   D  head size, H / A
    L  length of a padded row          V  vocabulary
"""

from .batch import PackedBatch
from .bert import BertForMaskedLM, BertForPreTraining, BertModel
from .config import PRESETS, BertConfig, ModelError, flops_per_token, parameter_count
from .tasks import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

__all__ = [
    "PRESETS",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "ModelError",
    "PackedBatch",
    "flops_per_token",
    "parameter_count",
]
