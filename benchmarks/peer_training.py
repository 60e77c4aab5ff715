"""The other side of learning.py: `BertForPreTraining` of transformers, trained by the clock as well as it can be.

Set-up: the architecture and vocabulary of our default, its own initialisation, scaled-dot-product attention, bf16
autocast where the hardware computes in it, fused AdamW (0.9, 0.999) with weight decay 0.01 on matrices, 10 % warm-up
and linear decay to the end of the time, gradients clipped at 1, dynamic padding (to the longest example of a batch, no
mask where there is none). Dropout is 0, not the 0.1 that its BertConfig has: that is slower, and no better in runs this
short. Its MLM head runs on the masked rows alone (`model.bert`, `index_select`, `model.cls.predictions`). Pairs and
masks are those of our own loader, from the same seed, whose packed batches are laid out as rectangles: its data loading
is as fast as ours.
"""

import torch
import transformers
from timed_training import Judge, Stopwatch, Terms
from torch import Tensor, nn

from data_prep.examples.packing import ShardExamples
from data_prep.prepared import PreparedCorpus
from model import BertConfig, PackedBatch, parameter_count
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.build import bert_objective
from pretrain.engine.batches import Position
from pretrain.engine.device import Precision
from pretrain.engine.settings import Budget, Schedule
from pretrain.settings import PretrainSettings

WARMUP = 0.1


class Peer(nn.Module):
    """A fresh model of transformers with our sizes; reads packed batches, so that our objective can score it."""

    def __init__(self, preset: str, vocab_size: int, sequence_length: int):
        super().__init__()
        sizes = {"vocab_size": vocab_size, "max_position_embeddings": sequence_length}
        dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        config = BertConfig.from_preset(preset, **sizes, **dropout)
        theirs = transformers.BertConfig.from_dict(config.to_dict())
        self.bert = transformers.AutoModelForPreTraining.from_config(theirs, attn_implementation="sdpa")
        assert sum(p.numel() for p in self.parameters()) == parameter_count(config), "the two architectures differ"

    def forward_packed(
        self, batch: PackedBatch, masked_positions: Tensor, most_masked: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """MLM logits [M, V] at the targets alone, NSP logits [N, 2]: its forward pass on rows padded to the longest."""
        layout = batch.layout()
        encoded = self.bert.bert(
            input_ids=layout.pad(batch.input_ids),
            token_type_ids=layout.pad(batch.token_type_ids),
            attention_mask=None if layout.padding is None else layout.pad(torch.ones_like(batch.input_ids)),
        )
        places = masked_positions if layout.slots is None else layout.slots[masked_positions]
        rows = encoded.last_hidden_state.flatten(0, 1).index_select(0, places)
        return self.bert.cls.predictions(rows), self.bert.cls.seq_relationship(encoded.pooler_output)


def make_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Fused AdamW; no decay of biases and LayerNorms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), fused=True)


class PeerTraining:
    """A training of the model of transformers, step by step.

    Args:
        settings: our resolved defaults: corpus, examples, device and precision are theirs.
    """

    def __init__(self, settings: PretrainSettings, preset: str, learning_rate: float, batch_size: int):
        self.prepared = PreparedCorpus(settings.prepared)
        examples, tokenizer = settings.examples, self.prepared.tokenizer
        stream = ExampleStream(ShardExamples.of(self.prepared, "train", examples.longest, examples.seed))
        self._drawn = stream.batches(batch_size, Position())
        self._maker = BatchMaker(self.prepared.train, tokenizer, examples.masking, settings.micro_batch_tokens)
        self._objective = bert_objective(self.prepared.unigram_counts)
        self._precision, self._device = Precision(settings.device, settings.precision), settings.device
        torch.manual_seed(examples.seed)
        self.model = Peer(preset, tokenizer.vocab_size, examples.longest).to(self._device).train()
        self._optimizer, self._learning_rate = make_optimizer(self.model, learning_rate), learning_rate
        self.steps = self.tokens = 0

    def step(self, share: float) -> None:
        """One batch; `share` of the peak learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = share * self._learning_rate
        examples, _ = next(self._drawn)
        batch = self._maker.packed(examples)
        counts = self._objective.counts(batch)
        with self._precision():
            sums = self._objective.loss_sums(self.model, batch.to(self._device, non_blocking=True))
        sum(value / max(1, counts[name]) for name, value in sums.items()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps, self.tokens = self.steps + 1, self.tokens + batch.num_tokens


def peer(settings: PretrainSettings, terms: Terms, preset: str, learning_rate: float, batch_size: int) -> dict:
    """The row of a training of transformers; the rules of the clock are those of `timed_training`."""
    transformers.logging.set_verbosity_error()
    training = PeerTraining(settings, preset, learning_rate, batch_size)
    judge = Judge(training.prepared, terms)
    budget = Budget.parse(terms.budget)
    schedule = Schedule("linear", WARMUP * budget.amount, budget.amount)
    stopwatch, evaluated = Stopwatch(), 0
    while (used := training.steps if budget.is_counted else stopwatch.seconds()) < budget.amount:
        due = int(used / budget.amount * terms.points)
        if due > evaluated:
            stopwatch.stop()
            judge(training.model, terms.examples_a_point, stopwatch.seconds(), training.steps, training.tokens)
            evaluated = due
            stopwatch.go_on()
        training.step(schedule(used))
    stopwatch.stop()
    judge(training.model, terms.examples, stopwatch.seconds(), training.steps, training.tokens)
    return judge.row(settings={"preset": preset, "learning_rate": learning_rate, "batch_size": batch_size})
