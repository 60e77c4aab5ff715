"""The task classes: an encoder and one small head, as the class of the same name in transformers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch import PackedBatch, in_recurring_rows
from .bert import BertWithHead, place_all, token_loss, unpadded
from .config import BertConfig, ModelError
from .outputs import EncoderOutput, LogitsOutput, QuestionAnsweringOutput


class BertForNextSentencePrediction(BertWithHead):
    """NSP head: 0 = B follows A, 1 = B is random."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.nsp_head = nn.Linear(config.hidden_size, 2)
        self.initialise_heads()

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> LogitsOutput:
        """logits [N, 2]; labels [N], -100 to ignore."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.encode_pooled(batch, output_attentions, output_hidden_states)
        logits = self.nsp_head(encoded.pooler_output)
        loss = None if labels is None else F.cross_entropy(logits, labels.view(-1))
        return LogitsOutput(loss, logits, place_all(encoded.hidden_states, place), encoded.attentions)


class BertForSequenceClassification(BertWithHead):
    """One label, several labels or numbers for each sequence."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.classifier = self.new_classifier(config.num_labels)
        self.initialise_heads()

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> LogitsOutput:
        """logits [N, C]; labels [N] of classes, or [N, C], by config.problem_type."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.encode_pooled(batch, output_attentions, output_hidden_states)
        logits = self.classifier(encoded.pooler_output)
        loss = None if labels is None else sequence_loss(self.config, logits, labels)
        return LogitsOutput(loss, logits, place_all(encoded.hidden_states, place), encoded.attentions)


def sequence_loss(config: BertConfig, logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of a sequence classifier: squared error, cross entropy, or binary cross entropy over the labels.

    Without config.problem_type, one output means regression; otherwise integer labels mean classes, and float labels
    multi-label targets.
    """
    kind = config.problem_type
    if kind is None:
        classes = labels.dtype in (torch.int64, torch.int32)
        kind = "single_label_classification" if classes else "multi_label_classification"
        kind = "regression" if config.num_labels == 1 else kind
    if kind == "regression":
        return F.mse_loss(logits.squeeze(), labels.squeeze())
    if kind == "single_label_classification":
        return token_loss(logits, labels.long())
    return F.binary_cross_entropy_with_logits(logits, labels)


class BertForTokenClassification(BertWithHead):
    """A label for each token; no pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.classifier = self.new_classifier(config.num_labels)
        self.initialise_heads()

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> LogitsOutput:
        """logits [N, L, C], labels [N, L], -100 at padding; a PackedBatch: [T, ...], labels [T]."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.bert.encode(batch, output_attentions, output_hidden_states)
        logits = place(self.classifier(encoded.last_hidden_state))
        loss = None if labels is None else token_loss(logits, labels)
        return LogitsOutput(loss, logits, place_all(encoded.hidden_states, place), encoded.attentions)

    def logits_at(self, batch: PackedBatch, at: Tensor) -> Tensor:
        """Logits [M, C] at the token indices `at`, int64 [M] in [0, T); the last layer is computed only for these."""
        return in_recurring_rows(self.classifier, self.bert.encode(batch, at=at).last_hidden_state)


class BertForQuestionAnswering(BertWithHead):
    """Start and end of an answer in the text; no pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        if config.num_labels != 2:
            raise ModelError(
                f"num_labels is {config.num_labels}, and question answering needs 2 (start, end); give num_labels=2"
            )
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.initialise_heads()

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> QuestionAnsweringOutput:
        """start and end logits [N, L] (packed: L the longest); positions [N], ignored past the end and in padding."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.bert.encode(batch, output_attentions, output_hidden_states)
        layout = batch.padded_layout()
        logits = layout.pad(self.qa_outputs(encoded.last_hidden_state))  # [N, L, 2]
        if layout.padding is not None:
            padding = layout.padding.view(layout.num_sequences, layout.length, 1)
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        start, end = logits.unbind(-1)  # [N, L] each
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (_position_loss(start, start_positions) + _position_loss(end, end_positions)) / 2
        return QuestionAnsweringOutput(loss, start, end, place_all(encoded.hidden_states, place), encoded.attentions)

    def logits_at(self, batch: PackedBatch, at: Tensor) -> Tensor:
        """Start and end logits [M, 2] at the token indices `at`, int64 [M] in [0, T)."""
        return in_recurring_rows(self.qa_outputs, self.bert.encode(batch, at=at).last_hidden_state)


def _position_loss(logits: Tensor, positions: Tensor) -> Tensor:
    """Mean cross entropy of logits [N, L]; a position past the end, or in padding, does not count."""
    length = logits.shape[1]
    positions = positions.view(-1).clamp(0, length)
    there = logits.gather(1, positions.clamp(max=length - 1)[:, None]).squeeze(1)
    is_padding = there == torch.finfo(logits.dtype).min
    return F.cross_entropy(logits, positions.masked_fill(is_padding, length), ignore_index=length)


class BertForMultipleChoice(BertWithHead):
    """Which of C continuations fits."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.classifier = self.new_classifier(1)
        self.initialise_heads()

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> LogitsOutput:
        """input_ids [N, C, L] -> logits [N, C], labels [N]; a PackedBatch: a score a sequence, [N, 1]."""
        choices = 1
        if isinstance(input_ids, Tensor):
            choices = input_ids.shape[1]
            input_ids = input_ids.flatten(0, 1)  # [N * C, L]
            attention_mask, token_type_ids = (
                None if values is None else values.flatten(0, 1) for values in (attention_mask, token_type_ids)
            )
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.encode_pooled(batch, output_attentions, output_hidden_states)
        logits = self.classifier(encoded.pooler_output).view(-1, choices)  # [N, C]
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return LogitsOutput(loss, logits, place_all(encoded.hidden_states, place), encoded.attentions)


class BertForVectors(BertWithHead):
    """A vector for each sequence, the mean of its tokens' last hidden states (Reimers and Gurevych 2019, section 3).

    It has neither a head nor a pooler; its encoder alone is what transformers calls a BertModel.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> EncoderOutput:
        """The vectors are the pooler_output: [N, H], in float32 at least; the rest is that of a BertModel."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.bert.encode(batch)
        hidden = encoded.last_hidden_state  # [T, H]
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        sums = batch.layout().pad(hidden).sum(1, dtype=dtype)  # [N, H]
        encoded.pooler_output = sums / batch.sequence_starts.diff()[:, None]
        encoded.last_hidden_state = place(hidden)
        return encoded
