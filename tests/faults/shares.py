"""Gradients and evaluations of many random batches in a world of processes, written to a file by the first one.

Started like a run: `main` takes the folder of a prepared corpus and the file to write.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from data_prep.examples.packing import Examples, ShardExamples
from data_prep.prepared import PreparedCorpus
from model import BertConfig, BertForPreTraining
from pretrain.batches import BatchMaker, ExampleStream, PretrainingBatch
from pretrain.engine.batches import Batches, Position
from pretrain.engine.device import Precision
from pretrain.engine.distributed import World, joined
from pretrain.engine.settings import LoopSettings
from pretrain.engine.step import Learner, add_counts, add_gradients
from pretrain.evaluate import Evaluation
from pretrain.objective import PretrainingObjective
from pretrain.objectives import bert_objective

CASES = 16


def main(arguments: Sequence[str]) -> int:
    prepared, path = PreparedCorpus(arguments[0]), Path(arguments[1])
    with joined("cpu") as world:
        found = list(cases(prepared, world))
        if world.is_main:
            torch.save(found, path)
    return 0


def cases(prepared: PreparedCorpus, world: World) -> Iterator[dict[str, object]]:
    """Of each case: losses, tokens, the gradient of every parameter, and results on held-out text."""
    rng = random.Random(0)
    for number in range(CASES):
        length, batch_size = rng.choice([16, 32, 48]), rng.choice([1, 2, 3, 5, 17])
        tokens, next_sentence = rng.choice([20, 100, 4096]), rng.random() < 0.7
        stream = ExampleStream(ShardExamples.of(prepared, "train", length, number, next_sentence))
        maker = BatchMaker(prepared.train, prepared.tokenizer, "token", tokens)
        batches = Batches(stream, maker, batch_size, Position(), world)
        objective = bert_objective(prepared.unigram_counts, next_sentence)
        model = small_model(prepared, number, next_sentence)
        losses, gradients, counted = one_step(model, objective, batches, world)
        held_out = CountingMaker(prepared.validation, prepared.tokenizer, "token", tokens, prepared.validation_copied)
        held_out_examples = ShardExamples.of(prepared, "validation", length, next_sentence=next_sentence)
        evaluation = Evaluation(held_out_examples, objective, held_out, Precision("cpu", "fp32"), world)
        results = evaluation(model, batch_size)
        counts = {"tokens": counted, "held_out_tokens": world.sum([held_out.tokens])[0]}
        yield {"losses": losses, "gradients": gradients, "counts": counts, "held_out": results}


class CountingMaker(BatchMaker):
    """Knows how many tokens were asked of it."""

    tokens = 0

    def packed(self, examples: Examples) -> PretrainingBatch:
        self.tokens += int(examples.lengths().sum())
        return super().packed(examples)


def small_model(prepared: PreparedCorpus, seed: int, next_sentence: bool) -> BertForPreTraining:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=prepared.tokenizer.vocab_size, max_position_embeddings=48, **sizes,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    model = BertForPreTraining(config)
    if not next_sentence:
        model.bert.pooler.requires_grad_(False)
        model.nsp_head.requires_grad_(False)
    return model


def one_step(model: BertForPreTraining, objective: PretrainingObjective, batches: Batches, world: World):
    """The loop's own gradients of the first global batch; nothing is learned from them."""
    settings = LoopSettings(optimizer="adamw", learning_rate=1e-3, precision="fp32", device="cpu")
    learner = Learner(settings, model, objective, seed=1, world=world)
    batches.draw()
    micro_batches = batches.micro_batches()
    totals = add_counts(learner, micro_batches, batches.num_tokens)
    losses = add_gradients(learner, micro_batches, totals, batches.maker.empty_batch())
    losses = dict(zip(losses, world.sum([float(value) for value in losses.values()]), strict=True))
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, learner.counters.tokens
