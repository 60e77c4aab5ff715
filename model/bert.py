"""BertModel and the two classes for pretraining, under the names and the interface of transformers.

Every class takes padded tensors, or one PackedBatch as its only input. Padded calls give padded outputs, zero
at padding, where transformers gives numbers that mean nothing; the first real token of a row is the one that
is pooled.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import IMPLEMENTATIONS, AttentionPlan, choose_kernel, plan_attention, plan_for_chosen
from .batch import PackedBatch, in_recurring_rows
from .blocks import Dropout
from .config import BertConfig, ModelError
from .encoder import Embeddings, Layers
from .heads import ClassificationHead, DeepClassificationHead, MaskedLanguageHead, Pooler
from .huggingface import PretrainedModel
from .initialisation import initialise, look_at_neighbours
from .outputs import EncoderOutput, LogitsOutput, PreTrainingOutput
from .some_rows import learning


class BertModel(PretrainedModel):
    """The encoder and, unless `add_pooling_layer` is false, the pooler."""

    layers_class: ClassVar[type[Layers]] = Layers
    pooler_class: ClassVar[type[nn.Module]] = Pooler

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = self.layers_class(config)
        self.pooler = self.pooler_class(config) if add_pooling_layer else None
        self.attention_implementation = "auto"
        # The kernels drop weights themselves, with its probability.
        self.attention_dropout = Dropout(config.attention_probs_dropout_prob)
        initialise(self, config.initializer_range)

    @property
    def attention_implementation(self) -> str:
        """One of "auto", "varlen", "chunked", "sdpa", "dense"; raises ModelError for another name."""
        return self._attention_implementation

    @attention_implementation.setter
    def attention_implementation(self, name: str) -> None:
        if name not in IMPLEMENTATIONS:
            raise ModelError(
                f"attention_implementation {name!r} is not known; choose one of {', '.join(IMPLEMENTATIONS)}"
            )
        self._attention_implementation = name

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """input_ids [N, L] -> padded outputs; a PackedBatch -> packed outputs."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.encode(batch, output_attentions, output_hidden_states)
        encoded.last_hidden_state = place(encoded.last_hidden_state)
        encoded.hidden_states = place_all(encoded.hidden_states, place)
        return encoded

    def encode(
        self,
        batch: PackedBatch,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        at: Tensor | None = None,
        most_at: int | None = None,
    ) -> EncoderOutput:
        """Packed outputs: last_hidden_state [T, H], pooler_output [N, H].

        Args:
            at: int64 [M], token indices in [0, T), each once, possibly none: last_hidden_state is [M, H], for these
                only, and the last layer is computed just for them and the pooler.
            most_at: upper bound on their number in one sequence; max_sequence_length if None.

        Raises:
            ModelError: a sequence is longer than max_position_embeddings, no sequence has a token, or ids are out of
                range; ids are checked only for padded input on a CPU, where that costs nothing.
        """
        self._check(batch)
        plan = self._plan(batch, output_attentions, None if output_hidden_states else at, most_at)
        chosen, hidden = plan.chosen, self.embeddings(batch, plan.num_rows)
        states, attentions = [hidden] if output_hidden_states else [], []
        order = self.layers.in_order()
        for number, layer in enumerate(order, 1):
            hidden, weights = layer(hidden, plan, chosen if number == len(order) else None)
            if output_hidden_states:
                states.append(hidden)
            if output_attentions:
                attentions.append(weights)
        first = batch.first_tokens() if chosen is None else chosen.first
        pooled = None if self.pooler is None else self.pooler(hidden.index_select(0, first))
        if at is not None:
            hidden = hidden.index_select(0, at if chosen is None else chosen.others)
        else:
            hidden = hidden[: batch.num_tokens]
        return EncoderOutput(
            hidden,
            pooled,
            tuple(state[: batch.num_tokens] for state in states) if output_hidden_states else None,
            tuple(attentions) if output_attentions else None,
        )

    def embedded(self, batch: PackedBatch) -> Tensor:
        """What the first layer reads: [T, H]."""
        embedded: Tensor = self.embeddings(batch, batch.num_tokens)
        return embedded

    def first_layers(self, count: int) -> Self:
        """The first `count` layers as a model that shares their weights, without the pooler, which belongs to the last
        layer; the model itself for 0 or all layers. Raises ModelError for more than it has."""
        if not 0 <= count <= self.config.num_hidden_layers:
            raise ModelError(f"{count} layers were asked for: the model has {self.config.num_hidden_layers}")
        if count in (0, self.config.num_hidden_layers):
            return self
        with torch.device("meta"):
            cut = type(self)(self.config.changed(num_hidden_layers=count), add_pooling_layer=False)
        names = cut.state_dict().keys()
        cut.load_state_dict({name: value for name, value in self.state_dict().items() if name in names}, assign=True)
        return cut.eval()

    def layer_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the layers."""
        return self.layers.matrices()

    def look_at_neighbours(self) -> None:
        """Let the first layer of a fresh model look at the neighbours of a word (see `initialisation`), and all layers
        that share its weights."""
        embeddings, first = self.embeddings, self.layers.in_order()[0]
        projection = None if embeddings.projection is None else embeddings.projection.weight
        look_at_neighbours(embeddings.position.weight, first.qkv.weight, first.num_heads, projection)

    def _plan(
        self, batch: PackedBatch, output_attentions: bool, at: Tensor | None, most_at: int | None
    ) -> AttentionPlan:
        """How this forward attends: "dense" where the weights are asked for, in the rectangle of the call."""
        num_heads = self.config.num_attention_heads
        dropout = self.attention_dropout.p if self.training else 0.0
        if output_attentions:
            return plan_attention(batch, "dense", num_heads, dropout, batch.padded_layout())
        dtype, head_size = self.embeddings.word.weight.dtype, self.config.hidden_size // num_heads
        kernel = choose_kernel(self.attention_implementation, batch, dtype, dropout, head_size)
        if at is None:
            return plan_attention(batch, kernel, num_heads, dropout)
        return plan_for_chosen(batch, kernel, num_heads, dropout, at, most_at)

    def _check(self, batch: PackedBatch) -> None:
        length = batch.padded.length if batch.padded else batch.max_sequence_length
        if length > self.config.max_position_embeddings:
            raise ModelError(
                f"a sequence of {length} tokens is longer than max_position_embeddings "
                f"{self.config.max_position_embeddings}; cut it, or use a model for longer sequences"
            )
        if len(batch.sequence_starts) > 1 and not batch.num_tokens:
            raise ModelError("the sequences have no tokens; leave them out")
        # On a GPU a look at the ids would stop the step; packed batches come from data that was checked.
        if batch.padded and batch.input_ids.device.type == "cpu" and batch.num_tokens:
            vocab_size, types = self.config.vocab_size, self.config.type_vocab_size
            for found in _ends(batch.input_ids):
                if not 0 <= found < vocab_size:
                    raise ModelError(
                        f"token id {found} is outside the vocabulary of {vocab_size}; "
                        "use the tokenizer that belongs to this model"
                    )
            for found in _ends(batch.token_type_ids):
                if not 0 <= found < types:
                    raise ModelError(f"token type {found} is not known; give types from 0 to {types - 1}")


def _ends(values: Tensor) -> tuple[int, int]:
    """The smallest and the largest."""
    least, most = values.aminmax()
    return int(least), int(most)


def unpadded(
    input_ids: Tensor | PackedBatch, attention_mask: Tensor | None, token_type_ids: Tensor | None
) -> tuple[PackedBatch, Callable[[Tensor], Tensor]]:
    """The batch of a call, and the function that brings [T, ...] into the form of the call's outputs.

    Raises:
        ModelError: shapes do not agree, or a PackedBatch, which holds its token types and no padding, is not alone.
    """
    if isinstance(input_ids, PackedBatch):
        if attention_mask is not None or token_type_ids is not None:
            raise ModelError("a PackedBatch has token types of its own and no padding; give it alone")
        return input_ids, lambda values: values
    batch = PackedBatch.from_padded(input_ids, token_type_ids, attention_mask)
    return batch, batch.padded_layout().pad


def place_all(states: tuple[Tensor, ...] | None, place: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...] | None:
    """`place` applied to every hidden state."""
    return None if states is None else tuple(place(state) for state in states)


class BertWithHead(PretrainedModel):
    """A BertModel under the name `bert`: what all classes with heads share."""

    encoder_class: ClassVar[type[BertModel]] = BertModel
    classifier_class: ClassVar[type[nn.Module]] = ClassificationHead
    """Of (config, number of outputs)."""
    mlm_head: MaskedLanguageHead
    """Of the classes that have one."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool) -> None:
        super().__init__(config)
        self.bert = self.encoder_class(config, add_pooling_layer)

    @property
    def attention_implementation(self) -> str:
        """One of "auto", "varlen", "chunked", "sdpa", "dense", for all layers."""
        return self.bert.attention_implementation

    @attention_implementation.setter
    def attention_implementation(self, name: str) -> None:
        self.bert.attention_implementation = name

    def new_classifier(self, num_labels: int) -> nn.Module:
        """A head with this many outputs for each pooled sequence, or each token; a deep one where the config has hidden
        layers for it."""
        kind = DeepClassificationHead if self.config.classifier_hidden_layers else self.classifier_class
        return kind(self.config, num_labels)

    def encode_pooled(self, batch: PackedBatch, output_attentions: bool, output_hidden_states: bool) -> EncoderOutput:
        """For a head that reads the pooler's output alone: last_hidden_state is empty."""
        return self.bert.encode(batch, output_attentions, output_hidden_states, at=batch.input_ids[:0])

    def word_scores(self, hidden: Tensor, entries: Tensor | None = None) -> Tensor:
        """What the MLM head makes of last hidden states [T, H]: logits [T, V], or [T, S] for these entries alone.

        Args:
            entries: int64 [S], entries of the vocabulary, each once.
        """
        words = self.bert.embeddings.word.weight
        return in_recurring_rows(lambda rows: self.mlm_head(rows, words, entries), hidden)

    @torch.no_grad()
    def of_layers(self, numbers: Sequence[int]) -> Self:
        """A copy of the model that keeps only some of its layers.

        Args:
            numbers: the layers to keep, counted from 0.

        Raises:
            ModelError: the model has no layer of a number.
        """
        if away := [number for number in numbers if not 0 <= number < self.config.num_hidden_layers]:
            raise ModelError(f"there is no layer {away[0]}: the model has 0 to {self.config.num_hidden_layers - 1}")
        fewer = self.remade(num_hidden_layers=len(numbers))
        others = {name: value for name, value in self.state_dict().items() if not name.startswith("bert.layers.")}
        fewer.load_state_dict(others, strict=False)
        every = self.bert.layers.in_order()
        for layer, number in zip(fewer.bert.layers.in_order(), numbers, strict=True):
            layer.load_state_dict(every[number].state_dict())
        return fewer

    def layer_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the layers."""
        return self.bert.layer_matrices()

    def learn_words(self, ids: Tensor) -> None:
        """See `PretrainedModel.learn_words`; not for a model that predicts words."""
        self.bert.embeddings.word = learning(self.bert.embeddings.word, ids)

    def freeze_encoder(self) -> None:
        """Freeze embeddings and layers; the pooler and the heads stay trainable.

        The word embedding, which the MLM head scores with, is frozen too. Dropout still follows train() and eval().
        """
        self.bert.embeddings.requires_grad_(False)
        self.bert.layers.requires_grad_(False)

    def look_at_neighbours(self) -> None:
        """See `BertModel.look_at_neighbours`."""
        self.bert.look_at_neighbours()

    def initialise_heads(self) -> None:
        """Fresh values for everything but `bert`, which has its own."""
        for name, child in self.named_children():
            if name != "bert":
                initialise(child, self.config.initializer_range)


class BertForPreTraining(BertWithHead):
    """MLM and NSP heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.mlm_head = MaskedLanguageHead(config)
        self.nsp_head = nn.Linear(config.hidden_size, 2)
        self.initialise_heads()

    def head_matrices(self) -> list[nn.Parameter]:
        """The dense one of the MLM head."""
        return [cast(nn.Parameter, self.mlm_head.dense.weight)]

    def vocabulary_parameters(self) -> list[Tensor]:
        """Those with a row for each entry of the vocabulary: the word embedding, which is the decoder, and its bias."""
        return [self.bert.embeddings.word.weight, self.mlm_head.bias]

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> PreTrainingOutput:
        """MLM logits [N, L, V], NSP logits [N, 2]; labels [N, L], next_sentence_label [N], -100 to ignore.

        For a PackedBatch: [T, V], labels [T]. `forward_packed` scores only some tokens.
        """
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.bert.encode(batch, output_attentions, output_hidden_states)
        scores = place(self.word_scores(encoded.last_hidden_state))
        relation = self.nsp_head(encoded.pooler_output)
        loss = None
        if labels is not None and next_sentence_label is not None:
            loss = token_loss(scores, labels) + F.cross_entropy(relation, next_sentence_label.view(-1))
        return PreTrainingOutput(loss, scores, relation, place_all(encoded.hidden_states, place), encoded.attentions)

    def forward_packed(
        self,
        batch: PackedBatch,
        masked_positions: Tensor,
        most_masked: int | None = None,
        entries: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """MLM logits [M, V] at the masked positions only, and NSP logits [N, 2]: what pretraining calls.

        Args:
            masked_positions: int64 [M], token indices in [0, T), each once.
            most_masked: upper bound on their number in one sequence; max_sequence_length if None.
            entries: int64 [S], entries of the vocabulary, each once: MLM logits [M, S] for these alone.
        """
        encoded = self.bert.encode(batch, at=masked_positions, most_at=most_masked)
        return self.word_scores(encoded.last_hidden_state, entries), self.nsp_head(encoded.pooler_output)


class BertForMaskedLM(BertWithHead):
    """MLM head, no pooler."""

    mlm_head_class: ClassVar[type[MaskedLanguageHead]] = MaskedLanguageHead

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.mlm_head = self.mlm_head_class(config)
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
        """logits [N, L, V]; labels [N, L], -100 to ignore. A PackedBatch: [T, V], labels [T]."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.bert.encode(batch, output_attentions, output_hidden_states)
        scores = place(self.word_scores(encoded.last_hidden_state))
        loss = None if labels is None else token_loss(scores, labels)
        return LogitsOutput(loss, scores, place_all(encoded.hidden_states, place), encoded.attentions)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy of logits [..., C] over labels [...] that are not -100."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
