"""BERT in plain torch: a packed encoder, the heads of pretraining and of the usual tasks, transformers' folders.

Shapes are written with one alphabet, here and in data_prep/examples:

    T  tokens of a packed batch                     H  hidden size
    N  sequences, or examples                       A  attention heads
    L  length of a padded row                       D  size of a head, H / A
    M  masked tokens                                P  of query, key and value: how many in one tensor
    R  tokens that the last layer is computed for   V  vocabulary
    Q  length of a padded row of these              C  classes, or choices
    E  size of the embeddings, H in a BERT
    K  tokens that may be masked                    W  words that may be masked
    S  sentences of a shard, long ones in pieces    B  examples with a second segment

A docstring that gives a letter another meaning says so. A comment behind a line gives the shape of its result, where
that is another than before.
"""

from .albert import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from .batch import PackedBatch
from .bert import BertForMaskedLM, BertForPreTraining, BertModel
from .config import PRESETS, BertConfig, ModelError, flops_per_token, parameter_count
from .electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
)
from .tasks import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

__all__ = [
    "PRESETS",
    "AlbertConfig",
    "AlbertForMaskedLM",
    "AlbertForMultipleChoice",
    "AlbertForPreTraining",
    "AlbertForQuestionAnswering",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertModel",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "ElectraConfig",
    "ElectraForMaskedLM",
    "ElectraForMultipleChoice",
    "ElectraForPreTraining",
    "ElectraForQuestionAnswering",
    "ElectraForSequenceClassification",
    "ElectraForTokenClassification",
    "ElectraModel",
    "ModelError",
    "PackedBatch",
    "flops_per_token",
    "parameter_count",
]
