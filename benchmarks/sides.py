"""What a comparison of training steps needs: examples drawn before the clock starts, our side, blocks that alternate.

Our side is `pretrain.engine.step` itself, on a run that records nothing; for the other one see benchmarks/peers.py.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matmul import MatmulRate, linears, synchronise
from peers import LEARNING_SHARE, TransformersTraining, padded

from data_prep.prepared import PreparedCorpus
from data_prep.settings import ExampleSettings
from model import BertConfig, BertForPreTraining, flops_per_token
from pretrain.batches import BatchMaker, PretrainingBatch
from pretrain.build import make_data
from pretrain.engine.batches import Batches, Position
from pretrain.engine.device import DTYPES
from pretrain.engine.distributed import World
from pretrain.engine.step import Learner, step
from pretrain.objectives import make_objective
from pretrain.resolve import automatic_batch_size, resolve
from pretrain.settings import PretrainSettings

# What a measured step depends on.
SOURCES = ("data_prep", "model", "pretrain", *(f"benchmarks/{name}.py" for name in ("sides", "peers", "matmul")))
PACKAGES = ("torch", "transformers")
# Different global batches that a measurement goes through, again and again.
DRAWN = 16
LEAST_BLOCKS, BLOCKS = 3, 8
# How far losses may be apart in float32: a forgotten mask moves those of a fresh model by no more than 5e-5.
EXACT = 2e-5
# Of the peer; the steps by which its fastest way is chosen.
ATTENTIONS, TIMED = ("sdpa", "eager"), 5
DIVISIONS = {1: "one batch", 2: "2 groups by length", 4: "4 groups by length"}


@dataclass(frozen=True)
class Drawn:
    """A global batch that was drawn before: what `step` asks of `Batches`."""

    parts: list[PretrainingBatch]
    maker: BatchMaker
    num_tokens: int
    longest: int

    epochs = 0.0

    def micro_batches(self) -> list[PretrainingBatch]:
        return self.parts

    def identification(self) -> Callable[[], list]:
        return list


class Corpus:
    """Settings and global batches of a prepared corpus at one length; both sides read them."""

    def __init__(self, folder: Path, length: int, optimizer: str, device: str, tokens: int | None):
        self.prepared = PreparedCorpus(folder, verify=False)
        self.wanted = PretrainSettings(
            prepared=str(folder), budget="10m", optimizer=optimizer, device=device, mask_share=0.15, softmax="full",
            # Both sides have BERT's loss.
            pair_weight=1.0, pair_rate=1.0,
            examples=ExampleSettings(sequence_length=length),
        )  # fmt: skip
        self.settings = resolve(self.wanted)
        torch.set_num_threads(self.settings.threads)
        self.objective = make_objective(self.settings, self.prepared)
        stream, maker, evaluation = make_data(self.settings, self.prepared, self.objective, World())
        mean = float(evaluation.examples.lengths().mean())
        size = automatic_batch_size(self.settings.device, mean) if tokens is None else max(2, round(tokens / mean))
        batches = Batches(stream, maker, size, Position(), World())
        self.drawn = [self._draw(batches) for _ in range(DRAWN)]

    @staticmethod
    def _draw(batches: Batches) -> Drawn:
        batches.draw()
        return Drawn(batches.micro_batches(), batches.maker, batches.num_tokens, batches.longest)

    def settings_for(self, config: BertConfig) -> PretrainSettings:
        """The settings that the product would choose for a model of these sizes."""
        return resolve(self.wanted, config)

    def config(self, size: str, vocab_size: int | None = None) -> BertConfig:
        """The model "LAYERSxWIDTH" for this corpus; a larger vocabulary has entries that do not occur."""
        layers, hidden = map(int, size.split("x"))
        length, dropout = self.settings.examples.longest, self.settings.dropout
        return BertConfig.from_preset(
            "base", max(vocab_size or 0, self.prepared.tokenizer.vocab_size), num_hidden_layers=layers,
            hidden_size=hidden, max_position_embeddings=length, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )  # fmt: skip

    def useful_flops(self, config: BertConfig) -> float:
        """Useful FLOPs of a real token, in the mean."""
        parts = [part for drawn in self.drawn for part in drawn.parts]
        tokens = sum(part.num_tokens for part in parts)
        squares = sum(int(part.sequence_starts.diff().long().square().sum()) for part in parts)
        masked = sum(len(part.masked_targets) for part in parts)
        return flops_per_token(config, squares / tokens, masked / tokens)

    def matmul_rate(self, config: BertConfig, seconds: float) -> MatmulRate:
        """The bare products of a micro-batch of ours of mean size."""
        parts = [part for drawn in self.drawn for part in drawn.parts]
        sizes = [(part.num_tokens, len(part.masked_targets), part.num_sequences) for part in parts]
        means = (round(statistics.mean(column)) for column in zip(*sizes, strict=True))
        return MatmulRate(linears(config, *means), DTYPES[self.settings.precision], self.settings.device, seconds)


def new_model(config: BertConfig) -> BertForPreTraining:
    """The model that every side starts from."""
    torch.manual_seed(0)
    return BertForPreTraining(config)


def our_learner(corpus: Corpus, settings: PretrainSettings, model: BertForPreTraining) -> Learner:
    """Our side. It learns so little that the weights, and with them the losses, stay about where they were."""
    learner = Learner(settings, model, corpus.objective, seed=0)
    learner.optimizer.set_learning_rate(settings.learning_rate * LEARNING_SHARE)
    return learner


def check_same(corpus: Corpus, learner: Learner, peer: TransformersTraining) -> tuple[dict, float]:
    """Refuse to compare sides that do not compute the same: losses in float32, then the first step of both.

    Returns:
        Losses and gradient norm of our first step.
    """
    drawn = corpus.drawn[0]
    batches = padded(drawn.parts, 1)
    counts = [learner.counts(part) for part in drawn.parts]
    with torch.no_grad():
        sums = [learner.loss_sums(part.to(learner.device)) for part in drawn.parts]
    theirs = peer.exact_losses(batches)
    for name in (part.name for part in corpus.objective.parts):
        ours = sum(float(part[name]) for part in sums) / max(1, sum(count[name] for count in counts))
        assert abs(ours - theirs[name]) < EXACT * ours, f"{name}: {ours} and {theirs[name]} in float32"
    outcome = step(learner, drawn)
    first = outcome.losses, outcome.norm
    check_near(first, peer.step(batches))
    return first


def check_near(ours: tuple[dict, float], other: tuple[dict, float]) -> None:
    """Losses and gradient norms of two first steps agree as well as low precision lets them."""
    (loss, norm), (other_loss, other_norm) = ((float(sum(losses.values())), float(n)) for losses, n in (ours, other))
    near = abs(loss - other_loss) < 0.003 * loss and abs(norm - other_norm) < 0.02 * norm
    assert near, f"first steps: loss {loss} and {other_loss}, gradient {norm} and {other_norm}"


def fastest_way(corpus: Corpus, model: BertForPreTraining, **given) -> tuple[TransformersTraining, str, int]:
    """The peer with the attention, and the number of groups by length, that are fastest here.

    Each way takes one step to warm up and TIMED steps; all take turns, and the medians decide.

    Args:
        given: arguments of `TransformersTraining`.
    """
    peers = {kind: TransformersTraining(model, attention=kind, **given) for kind in ATTENTIONS}
    ways = {(kind, groups): [] for kind in ATTENTIONS for groups in DIVISIONS}
    for number in range(TIMED + 1):
        for (kind, groups), seconds in ways.items():
            batches = padded(corpus.drawn[number % DRAWN].parts, groups)
            seconds.append(time_of(partial(peers[kind].step, batches), corpus.settings.device))
    kind, groups = min(ways, key=lambda way: statistics.median(ways[way][1:]))
    return TransformersTraining(model, attention=kind, **given), kind, groups


def time_of(call: Callable[[], object], device: str) -> float:
    """Seconds that a call takes on the device."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def alternate(
    corpus: Corpus, sides: dict[str, Callable[[int], object]], until: float, between: Callable[[], object]
) -> dict[str, list[float]]:
    """Tokens a second of each side, block by block, until a moment of `time.perf_counter`.

    Args:
        sides: name -> takes a step on the global batch of this number; every side gets the same ones in a block.
        between: is called after each round of blocks.
    """
    device, rates = corpus.settings.device, {name: [] for name in sides}
    for take in sides.values():
        take(1)
    once = sum(time_of(partial(take, 0), device) for take in sides.values())
    steps = max(1, round((until - time.perf_counter()) / BLOCKS / once))
    done = 0
    while done < LEAST_BLOCKS or time.perf_counter() + steps * once < until:
        numbers = [(done * steps + i) % DRAWN for i in range(steps)]
        tokens = sum(corpus.drawn[number].num_tokens for number in numbers)
        # What comes first changes, so that a machine that slows down slows all sides.
        for name in list(sides)[:: 1 if done % 2 else -1]:
            rates[name].append(tokens / time_of(partial(take_all, sides[name], numbers), device))
        between()
        done += 1
    return rates


def take_all(take: Callable[[int], object], numbers: list[int]) -> None:
    """One step after the other."""
    for number in numbers:
        take(number)


def spread(rates: list[float]) -> str:
    """The median, and half the range as a share of it."""
    median = statistics.median(rates)
    return f"{median:,.0f} ± {(max(rates) - min(rates)) / 2 / median:.0%}"
