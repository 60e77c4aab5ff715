"""One optimizer step on a global batch, in as many micro-batches and processes as there are."""

import math

import torch
from torch import Tensor

from data_prep.random_keys import keys
from data_prep.screen import say
from model import PackedBatch

from .batches import Batches
from .distributed import unsynchronised
from .errors import PretrainError
from .optimizer import clip
from .training_run import Run

# So many steps in a row without a finite loss and gradient end a run.
MOST_SKIPPED_IN_A_ROW = 10


def step(run: Run, batches: Batches) -> tuple[dict[str, float], float]:
    """One optimizer step on a global batch; a step whose loss or gradient is not finite changes no weight.

    Where a GPU has too little memory, the step is computed again in micro-batches of half the size.

    Returns:
        The mean losses over the targets of the global batch, and the norm of the gradient before clipping.
    """
    counters = run.counters
    micro_batches = batches.micro_batches()
    totals = add_counts(run, micro_batches, batches.num_tokens)
    while (losses := add_gradients(run, micro_batches, totals, batches.maker.nothing())) is None:
        run.optimizer.zero_grad()
        counters.micro_batch_tokens = halve_micro_batches(batches)
        micro_batches = batches.micro_batches()
    losses = dict(zip(losses, run.world.sum([float(value) for value in losses.values()]), strict=True))
    norm = float(clip([p for p in run.model.parameters() if p.grad is not None], run.clip_norm))
    if math.isfinite(norm) and all(map(math.isfinite, losses.values())):
        run.optimizer.step()
        counters.skipped_in_a_row = 0
    else:
        skip(run)
    run.optimizer.zero_grad()
    counters.step += 1
    return losses, norm


def arrange_sums(run: Run, nothing: PackedBatch) -> None:
    """Let the processes fix the order in which they will add gradients up.

    DistributedDataParallel arranges its buckets anew after the first backward pass. Without this one, a run that goes
    on after an interruption would add up in another order than one that was never stopped.
    """
    backward(run, nothing, 0, run.counts(nothing), {})
    run.optimizer.zero_grad()


def add_counts(run: Run, micro_batches: list[PackedBatch], num_tokens: int) -> dict[str, float]:
    """Numbers of targets of the global batch; adds its tokens to the counters."""
    totals: dict[str, float] = {}
    for batch in micro_batches:
        for name, count in run.counts(batch).items():
            totals[name] = totals.get(name, 0) + count
    *counts, tokens = run.world.sum([*totals.values(), num_tokens])
    run.counters.tokens += int(tokens)
    return dict(zip(totals, counts, strict=True))


def add_gradients(
    run: Run, micro_batches: list[PackedBatch], totals: dict[str, float], nothing: PackedBatch
) -> dict[str, Tensor] | None:
    """The gradients of the whole global batch in every process, and the losses of this process's share of it.

    Processes add their gradients up during the backward pass of the last micro-batch. One that is larger than any
    before might run out of memory while the others wait for it: then an empty one comes last.

    Returns:
        None where the GPU's memory was too small.
    """
    losses: dict[str, Tensor] = {}
    alone, together = micro_batches, []
    if run.world.size > 1:
        is_large = micro_batches[-1].num_tokens > run.largest_computed
        alone, together = (micro_batches, [nothing]) if is_large else (micro_batches[:-1], micro_batches[-1:])
    try:
        for number, batch in enumerate(alone):
            with unsynchronised(run.loss_sums):
                backward(run, batch, number, totals, losses)
            run.largest_computed = max(run.largest_computed, batch.num_tokens)
    except torch.OutOfMemoryError:
        return None
    for batch in together:
        backward(run, batch, len(alone), totals, losses)
    return losses


def backward(run: Run, batch: PackedBatch, number: int, totals: dict[str, float], losses: dict[str, Tensor]) -> None:
    """Add the gradients and losses of a micro-batch."""
    # Dropout depends on where in the run it is drawn, never on what was drawn before.
    torch.manual_seed(int(keys(run.seed, "dropout", run.world.rank, run.counters.step, number)) >> 1)
    with run.precision():
        sums = run.loss_sums(batch.to(run.device, non_blocking=True))
    means = {name: value / max(1, totals[name]) for name, value in sums.items()}
    # The mean over processes, which DistributedDataParallel takes, is to be their sum.
    (torch.stack(list(means.values())).sum() * run.world.size).backward()
    for name, value in means.items():
        losses[name] = losses.get(name, 0.0) + value.detach()


def halve_micro_batches(batches: Batches) -> int:
    """Compute half as many tokens at once from now on; returns how many.

    Raises:
        PretrainError: single examples are too much already.
    """
    tokens = batches.maker.micro_batch_tokens
    if tokens <= batches.longest:
        raise PretrainError(
            f"the GPU's memory is too small for one example of {batches.longest} tokens: use a smaller --preset or "
            "--sequence-length"
        )
    torch.cuda.empty_cache()
    batches.maker.micro_batch_tokens = max(batches.longest, min(tokens, batches.num_tokens) // 2)
    say(f"The GPU's memory is too small: {batches.maker.micro_batch_tokens:,} tokens at once from now on, in the same "
        "steps (--micro-batch-tokens).")  # fmt: skip
    return batches.maker.micro_batch_tokens


def skip(run: Run) -> None:
    """Count a step that is not taken; too many in a row end the run."""
    run.counters.skipped += 1
    run.counters.skipped_in_a_row += 1
    if run.counters.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        good = run.checkpoints.all()
        raise PretrainError(
            f"the loss or its gradient was not finite for {MOST_SKIPPED_IN_A_ROW} steps in a row (step "
            f"{run.counters.step + 1}): start anew in another --out with a lower --learning-rate or --precision fp32, "
            f"or find the cause with --detect-anomaly; the last good checkpoint is {good[-1] if good else 'none yet'}"
        )
