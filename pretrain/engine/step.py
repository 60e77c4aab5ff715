"""What computes a step, and one optimizer step on a global batch, in as many micro-batches and processes as there are.

One verdict decides whether a step is taken: losses and gradient norm, over all parameters and processes, are finite. It
stays on the device, where every part of the optimizer obeys it (but see `device.optimizers_obey`); the host reads it
later (see `device.steps_behind`).
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from data_prep.examples.random_keys import keys
from model import PackedBatch
from model.huggingface import PretrainedModel

from .batches import Batches, moved
from .counters import Counters, LossScale, Outcome
from .device import Arriving, Precision, free_cache, optimizers_obey, steps_behind
from .distributed import World, unsynchronised
from .muon import Muon
from .optimizer import AdamW, Optimizer, Rates, clip
from .out_of_memory import halve, is_out_of_memory
from .settings import LoopSettings, PretrainError


class Objective(Protocol):
    """What is learned. `model` and `batch` are of the kinds that it is made for."""

    def counts(self, batch: Any) -> Mapping[str, float]:
        """How many targets a batch has, by the name of their loss."""

    def loss_sums(self, model: Any, batch: Any) -> dict[str, Tensor]:
        """The sum of the losses of these targets, by the same names: scalars with gradients."""


class LossSums(nn.Module):
    """An objective and its model as one module, so that DistributedDataParallel sees the whole forward pass."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Sums of losses by name: scalars with gradients."""
        return self.objective.loss_sums(self.model, batch)


class Learner:
    """All that `step` needs, and what it changes.

    Args:
        settings: resolved ones: device, precision, the optimizer with its numbers, `clip_norm`.
        model: is moved to the device, in training mode.
        seed: decides the dropout.
        counters: those of the steps so far, which go on.
        world: of all processes that share each step.
        rates: of the learning rate, by groups of parameters.
    """

    def __init__(self, settings: LoopSettings, model: PretrainedModel, objective: Objective, seed: int,
                 counters: Counters | None = None, world: World | None = None,
                 rates: Rates | None = None):  # fmt: skip
        self.model = model.to(settings.device).train()
        self.seed, self.clip_norm, self.device = seed, settings.clip_norm, torch.device(settings.device)
        self.counters, self.world = counters or Counters(), world or World()
        self.counts = objective.counts
        self.loss_sums = self.world.parallel(LossSums(model, objective))
        self.precision = Precision(settings.device, settings.precision)
        self.optimizer = Optimizer(
            model, settings.optimizer, settings.peak, settings.decay, self.precision.optimizer_dtype, rates,
            settings.adam_beta2, settings.muon_of_heads,
        )  # fmt: skip
        c = self.counters
        self.loss_scale = LossScale(self.precision.needs_loss_scale, self.device, c.loss_scale, c.steps_since_overflow)
        self.steps_behind = steps_behind(self.device)
        self.largest_computed = 0
        """Tokens of the largest micro-batch for which memory sufficed, since the optimizer has its state."""


def step(learner: Learner, batches: Batches) -> Outcome:
    """One optimizer step on the global batch drawn last; one that is not finite changes no weight.

    Where a GPU has too little memory, the step is computed again in micro-batches of half the size.

    Raises:
        PretrainError: a GPU's memory is too small for one example, or for the optimizer.
    """
    counters = learner.counters
    micro_batches = batches.micro_batches()
    totals = add_counts(learner, micro_batches, batches.num_tokens)
    while (sums := add_gradients(learner, micro_batches, totals, batches.maker.empty_batch())) is None:
        learner.optimizer.zero_grad()
        halve(batches.maker, batches.num_tokens, batches.longest, learner.device)
        counters.micro_batch_tokens = batches.maker.micro_batch_tokens
        micro_batches = batches.micro_batches()
    losses = learner.world.sum_tensor(torch.stack(list(sums.values())))
    trained = [p for p in learner.model.parameters() if p.grad is not None]
    norm = clip(trained, learner.clip_norm, learner.loss_scale.value)
    skipped, overflowed = verdict(learner, losses, norm)
    had_state = learner.optimizer.has_state
    change_weights(learner, (skipped | overflowed).float())
    if not had_state:
        # From now on its state takes memory that there was until now.
        learner.largest_computed = 0
    learner.loss_scale.update(skipped | overflowed)
    learner.optimizer.zero_grad()
    counters.step += 1
    arriving = Arriving(torch.cat([losses, torch.stack([norm, skipped, overflowed])]))
    return Outcome(
        step=counters.step,
        epochs=batches.epochs,
        tokens=counters.tokens,
        learning_rate=learner.optimizer.learning_rate,
        threads=torch.get_num_threads(),
        names=tuple(sums),
        arriving=arriving,
        identify=batches.identification(),
        without_targets=frozenset(name for name in sums if not totals[name]),
    )


def arrange_sums(learner: Learner, empty: PackedBatch) -> None:
    """Fix the order in which the processes add up gradients.

    DistributedDataParallel rearranges its buckets after the first backward pass. Without this extra pass, a resumed run
    would add up in another order than one that was never stopped.
    """
    backward(learner, empty, 0, learner.counts(empty), {})
    learner.optimizer.zero_grad()


def rehearse(learner: Learner, batch: PackedBatch) -> None:
    """A forward and a backward pass of this process alone, which change nothing."""
    try:
        with unsynchronised(learner.loss_sums):
            backward(learner, batch, 0, learner.counts(batch), {})
    finally:
        learner.optimizer.zero_grad()


def add_counts(learner: Learner, micro_batches: list[PackedBatch], num_tokens: int) -> dict[str, float]:
    """Numbers of targets of the global batch; adds its tokens to the counters."""
    totals: dict[str, float] = {}
    for batch in micro_batches:
        for name, count in learner.counts(batch).items():
            totals[name] = totals.get(name, 0) + count
    *counts, tokens = learner.world.sum([*totals.values(), num_tokens])
    learner.counters.tokens += int(tokens)
    return dict(zip(totals, counts, strict=True))


def add_gradients(
    learner: Learner, micro_batches: list[PackedBatch], totals: dict[str, float], empty: PackedBatch
) -> dict[str, Tensor] | None:
    """Compute the gradients of the whole global batch in every process.

    Processes add up their gradients during the backward pass of the last micro-batch. One that is larger than any
    before might run out of memory while the others wait; then an empty micro-batch comes last instead.

    Returns:
        This process's share of the mean losses, by name; None where the GPU's memory was too small.

    Raises:
        PretrainError: it was too small while the other processes waited.
    """
    losses: dict[str, Tensor] = {}
    together: list[PackedBatch] = []
    alone = micro_batches
    if learner.world.size > 1:
        is_large = micro_batches[-1].num_tokens > learner.largest_computed
        alone, together = (micro_batches, [empty]) if is_large else (micro_batches[:-1], micro_batches[-1:])
    try:
        for number, batch in enumerate(alone):
            with unsynchronised(learner.loss_sums):
                backward(learner, batch, number, totals, losses)
            learner.largest_computed = max(learner.largest_computed, batch.num_tokens)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    try:
        for batch in together:
            backward(learner, batch, len(alone), totals, losses)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        tokens = max(batch.num_tokens for batch in micro_batches) // 2
        raise PretrainError(
            "the GPU ran out of memory while the other processes waited for this one: end other programs on it and "
            f"give the same command again, or start over with --micro-batch-tokens {tokens} and another --out"
        ) from error
    return losses


def backward(
    learner: Learner, batch: PackedBatch, number: int, totals: Mapping[str, float], losses: dict[str, Tensor]
) -> None:
    """Add the gradients, times the loss scale, and the losses of a micro-batch."""
    # Dropout depends on where in the run it is drawn, never on what was drawn before.
    torch.manual_seed(int(keys(learner.seed, "dropout", learner.world.rank, learner.counters.step, number)) >> 1)
    with learner.precision():
        sums = learner.loss_sums(moved(batch, learner.device))
    means = {name: value / max(1, totals[name]) for name, value in sums.items()}
    # DistributedDataParallel averages over processes; this makes it a sum.
    (torch.stack(list(means.values())).sum() * learner.world.size * learner.loss_scale.value).backward()
    for name, value in means.items():
        losses[name] = losses.get(name, 0.0) + value.detach()


def verdict(learner: Learner, losses: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a step is skipped as it is not finite, and whether it only overflowed: bool scalars on the device, the
    same in all processes. Neither changes a weight.

    A non-finite gradient with a finite loss counts as an overflow, as long as the loss scale can still be halved.

    Args:
        losses: of the global batch.
        norm: of the gradient of all processes, without the loss scale.
    """
    is_finite = torch.isfinite(losses).all()
    has_overflowed = ~torch.isfinite(norm)
    can_shrink = learner.loss_scale.value > 1
    return ~is_finite | (has_overflowed & ~can_shrink), is_finite & has_overflowed & can_shrink


def change_weights(learner: Learner, found_inf: Tensor) -> None:
    """Let every part of the optimizer step, unless `found_inf` is 1. Each is tried twice where memory is short.

    Raises:
        PretrainError: the GPU's memory is too small for the optimizer.
    """
    if not optimizers_obey(learner.device) and found_inf.item():
        return
    for part in learner.optimizer.parts:
        part.found_inf = found_inf
        if not has_stepped(part):
            free_cache(learner.device)
            if not has_stepped(part):
                other = " or --optimizer adamw" if isinstance(part, Muon) else ""
                raise PretrainError(
                    f"the GPU's memory is too small for the optimizer of this model: use a smaller model{other}"
                )


def has_stepped(part: AdamW | Muon) -> bool:
    """Let a part step; False where there was no memory for it, and nothing was changed, as what takes memory comes
    first."""
    try:
        part.step()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
