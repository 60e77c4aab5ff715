"""The other side of learning.py: `BertForPreTraining` of transformers, trained by the clock.

Set-up: the architecture and vocabulary of our default, bf16 autocast where the hardware computes in it, gradients
clipped at 1. A batch is computed in the way that step.py found the fastest on a CPU with bf16 instructions (eager
attention, four groups of similar lengths, each padded to its longest example, no mask where there is no padding;
without these instructions it was not tried), and on a GPU with scaled-dot-product attention in one group. Dropout is 0,
not the 0.1 that its BertConfig has: that is slower, and no better in runs this short. Its MLM head runs on the masked
rows alone (`model.bert`, `index_select`, `model.cls.predictions`). Pairs and masks are those of our own loader, from
the same seed, whose packed batches are laid out as rectangles: its data loading is as fast as ours.

Its recipe (`RECIPE`) is BERT's: its own initialisation, fused AdamW (0.9, 0.999) with weight decay 0.01 on matrices,
10 % warm-up and linear decay, 15 % of the tokens as targets. It can also be trained with ours: our start, Muon for the
layers' matrices (here query, key and value apart) and, where it is asked for, that of the MLM head, our share of
targets, scores for all entries, next sentences with the weight and rate that are given.
"""

import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import transformers
from timed_training import Judge, Stopwatch, Terms
from torch import Tensor, nn

from data_prep.errors import UserError
from data_prep.examples.packing import ShardExamples
from data_prep.prepared import PreparedCorpus
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, PackedBatch, parameter_count
from model.families import read_config
from pretrain.batches import BatchMaker, ExampleStream, TrainingPlan
from pretrain.build import make_model
from pretrain.engine.batches import Position, moved
from pretrain.engine.device import Precision
from pretrain.engine.optimizer import Optimizer
from pretrain.engine.settings import Budget, Schedule
from pretrain.objectives import make_objective
from pretrain.resolve import resolve
from pretrain.settings import PretrainSettings

# As arguments of `python -m pretrain.run`, without learning rate and batch size.
RECIPE = ["--optimizer=adamw", "--weight-decay=0.01", "--warmup=0.1", "--mask-share=0.15", "--softmax=full"]
# The attention, and into how many groups by length a batch is divided.
CPU_WAY, OTHER_WAY = ("eager", 4), ("sdpa", 1)


class Peer(nn.Module):
    """The model of a folder in transformers; reads packed batches, so that our objective can score it."""

    def __init__(self, folder: Path, attention: str):
        super().__init__()
        self.whole = transformers.AutoModelForPreTraining.from_pretrained(
            folder, attn_implementation=attention, dtype=torch.float32
        )

    @property
    def bert(self) -> nn.Module:
        """Encoder and pooler."""
        return self.whole.bert

    @property
    def nsp_head(self) -> nn.Module:
        return self.whole.cls.seq_relationship

    def forward_packed(
        self, batch: PackedBatch, masked_positions: Tensor, most_masked: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """MLM logits [M, V] at the targets alone, NSP logits [N, 2]: its forward pass on rows padded to the longest."""
        layout = batch.layout()
        encoded = self.bert(
            input_ids=layout.pad(batch.input_ids),
            token_type_ids=layout.pad(batch.token_type_ids),
            attention_mask=None if layout.padding is None else layout.pad(torch.ones_like(batch.input_ids)),
        )
        places = masked_positions if layout.slots is None else layout.slots[masked_positions]
        rows = encoded.last_hidden_state.flatten(0, 1).index_select(0, places)
        return self.whole.cls.predictions(rows), self.nsp_head(encoded.pooler_output)

    def layer_matrices(self) -> list[nn.Parameter]:
        """What Muon optimizes."""
        return [parameter for parameter in self.bert.encoder.parameters() if parameter.dim() == 2]

    def head_matrices(self) -> list[nn.Parameter]:
        """What it may optimize too."""
        return [self.whole.cls.predictions.transform.dense.weight]


def save_plain_start(settings: PretrainSettings, tokenizer: WordPieceTokenizer, folder: Path) -> None:
    """A folder with a fresh model of transformers, drawn as it draws one, of the sizes and the seed of settings."""
    length = settings.examples.longest
    sizes = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": length}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout)
    config = BertConfig.from_preset(settings.preset, **sizes, **dropout)
    torch.manual_seed(settings.examples.seed)
    model = transformers.BertForPreTraining(transformers.BertConfig.from_dict(config.to_dict()))
    assert sum(p.numel() for p in model.parameters()) == parameter_count(config), "the two architectures differ"
    model.save_pretrained(folder)
    tokenizer.save(folder, length)


class PeerTraining:
    """A training of the model of transformers, step by step.

    Args:
        settings: resolved, with a batch size. It starts from the model of `--init-from`, or from our fresh one.

    Raises:
        UserError: for fp16, whose loss scale is not built here.
    """

    def __init__(self, settings: PretrainSettings):
        self.prepared = PreparedCorpus(settings.prepared)
        examples, tokenizer = settings.examples, self.prepared.tokenizer
        stream = ExampleStream(ShardExamples.of(self.prepared, "train", examples.longest, examples.seed))
        self._drawn = stream.batches(settings.batch_size, Position())
        plan = TrainingPlan(settings.mask_shares)
        tokens = settings.micro_batch_tokens
        self._maker = BatchMaker(self.prepared.train, tokenizer, examples.masking, tokens, plan=plan)
        self._objective = make_objective(settings, self.prepared)
        self._precision, self._settings = Precision(settings.device, settings.precision), settings
        if self._precision.needs_loss_scale:
            raise UserError("transformers has no loss scale here: use a device with bf16, or --peers with no value")
        attention, self._groups = CPU_WAY if settings.device == "cpu" else OTHER_WAY
        with tempfile.TemporaryDirectory() as folder:
            make_model(settings, self.prepared, self._objective).save_pretrained(folder)
            self.model = Peer(Path(folder), attention).to(settings.device).train()
        kind, rate, decay = settings.optimizer, settings.peak, settings.decay
        self._optimizer = Optimizer(self.model, kind, rate, decay, self._precision.optimizer_dtype,
                                    self._objective.rates(self.model), of_heads=settings.muon_of_heads)  # fmt: skip
        self.steps = self.tokens = 0

    def step(self, share: float, progress: float) -> None:
        """One batch at a share of the peak learning rate, when so much of the budget, in [0, 1], is used."""
        self._optimizer.set_learning_rate(share * self._settings.peak)
        self._maker.begin(self.steps, progress)
        examples, _ = next(self._drawn)
        order = np.argsort(self._maker.lengths(examples), kind="stable")
        groups = [self._maker.packed(examples[rows]) for rows in np.array_split(order, self._groups) if len(rows)]
        counts = Counter()
        for batch in groups:
            counts.update(self._objective.counts(batch))
        for batch in groups:
            with self._precision():
                sums = self._objective.loss_sums(self.model, moved(batch, torch.device(self._settings.device)))
            sum(value / max(1, counts[name]) for name, value in sums.items()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.clip_norm, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1
        self.tokens += sum(batch.num_tokens for batch in groups)


def peer(settings: PretrainSettings, terms: Terms) -> dict:
    """The row of a training of transformers with these settings; the rules of the clock are those of
    `timed_training`."""
    transformers.logging.set_verbosity_error()
    settings = resolve(settings, read_config(settings.init_from) if settings.init_from else None)
    torch.set_num_threads(settings.threads)
    training = PeerTraining(settings)
    judge = Judge(training.prepared, terms)
    budget = Budget.parse(terms.budget)
    schedule = Schedule(settings.schedule, settings.warmup * budget.amount, budget.amount)
    stopwatch, evaluated = Stopwatch(), 0
    while (used := training.steps if budget.is_counted else stopwatch.seconds()) < budget.amount:
        due = int(used / budget.amount * terms.points)
        if due > evaluated:
            stopwatch.stop()
            judge(training.model, terms.examples_a_point, stopwatch.seconds(), training.steps, training.tokens)
            evaluated = due
            stopwatch.go_on()
        training.step(schedule(used), schedule.progress(used))
    stopwatch.stop()
    judge(training.model, terms.examples, stopwatch.seconds(), training.steps, training.tokens)
    return judge.row(settings=asdict(settings))
