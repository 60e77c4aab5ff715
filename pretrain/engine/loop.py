"""The training loop. What is learned is the run's objective."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from data_prep.errors import Interrupted

from .anomaly import watched
from .batches import Batches, Position
from .counters import Outcome
from .errors import PretrainError
from .learner import Learner
from .run import Run
from .step import arrange_sums, step
from .threads import Threads

# This many steps in a row without a finite loss and gradient end a run.
MOST_SKIPPED_IN_A_ROW = 10


def train(run: Run, batches: Batches, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Train until the budget is used up, or patience is at its end, and save. The last evaluation is the caller's.

    Args:
        batches: gives global batches as lists of micro-batches, and knows its position.
        evaluate: held-out results of a model.

    Raises:
        PretrainError: loss or gradient were not finite for many steps in a row.
        Interrupted: a signal came; a checkpoint is written.
    """
    run.learner.model.train()
    if run.world.size > 1:
        arrange_sums(run.learner, batches.maker.nothing())
    run.agree()
    if run.counters.micro_batch_tokens:
        batches.maker.micro_batch_tokens = run.counters.micro_batch_tokens
    # A budget that has grown puts the run back to an earlier share of it.
    run.counters.evaluations = min(run.counters.evaluations, run.evaluations_due())
    unread: deque[Outcome] = deque()
    with run.interruption.deferred(), anomalies(run):
        while not run.is_over():
            if run.evaluation_is_due():
                read(run, unread)
                evaluate_and_save(run, batches.position, evaluate)
                run.agree()
                continue
            if run.checkpoint_is_due() or run.is_to_stop:
                read(run, unread)
                run.save(batches.position)
            stop_if_asked(run)
            run.learner.optimizer.set_learning_rate(run.settings.peak * run.schedule(run.amount_used()))
            unread.append(timed_step(run.learner, batches, run.threads))
            run.counters.epochs = batches.epochs
            run.agree()
            read(run, unread, keep=run.learner.steps_behind)
        read(run, unread)
        run.save(batches.position)
        stop_if_asked(run)


def timed_step(learner: Learner, batches: Batches, threads: Threads) -> Outcome:
    """A step on the next global batch; how long it took may change the number of threads of the next one."""
    began, tokens = time.monotonic(), learner.counters.tokens
    batches.draw()
    outcome = step(learner, batches)
    threads.took(time.monotonic() - began, learner.counters.tokens - tokens)
    return outcome


def anomalies(run: Run) -> AbstractContextManager[None]:
    """The watch over every module, if it is asked for."""
    if not run.settings.detect_anomaly:
        return nullcontext()
    return watched(run.learner.loss_sums, lambda: run.counters.step + 1)


def stop_if_asked(run: Run) -> None:
    """Raises Interrupted where a process was asked to stop, after all of them have finished the same step."""
    if run.is_to_stop:
        # A launcher ends all processes as soon as one has ended: none does before the checkpoint is written.
        run.world.from_main(lambda: None)
        path = run.checkpoints.path(run.counters.step)
        raise Interrupted(f"stopped by a signal after step {run.counters.step:,}, which {path} holds")


def read(run: Run, unread: deque[Outcome], keep: int = 0) -> None:
    """Record what the oldest steps did, all but the last `keep`, and the examples of one whose loss stands out.

    Raises:
        PretrainError: too many steps in a row were sick.
    """
    while len(unread) > keep:
        outcome, counters = unread.popleft(), run.counters
        counters.count(outcome)
        stop_if_sick(run, outcome)
        loss = sum(outcome.losses.values())
        if not math.isfinite(loss) or counters.usual_loss.is_spike(loss):
            counters.spikes += 1
            run.progress.spike(counters, outcome)
        run.progress.step(counters, outcome, run.seconds(), run.used())


def evaluate_and_save(run: Run, position: Position, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Evaluate, remember whether this is the best, write a checkpoint.

    A signal ends the evaluation of a single process at once; it is repeated when the run resumes.
    """
    due = run.evaluations_due()
    try:
        with run.interruption.immediate() if run.world.size == 1 else nullcontext():
            results = evaluate(run.learner.model)
    except Interrupted:
        run.save(position)
        run.is_to_stop = True
        stop_if_asked(run)
    run.counters.evaluations, run.counters.evaluated_step = due, run.counters.step
    record_evaluation(run, results)
    run.save(position)


def record_evaluation(run: Run, results: dict[str, float]) -> None:
    """Write down held-out results and remember whether they are the best."""
    counters = run.counters
    judgement = run.judge(results)
    counters.evaluations_since_best += 1
    if counters.best is None or judgement < counters.best:
        counters.best, counters.best_step, counters.evaluations_since_best = judgement, counters.step, 0
    run.progress.evaluation(counters, results)


def stop_if_sick(run: Run, outcome: Outcome) -> None:
    """Raises PretrainError where too many steps in a row were sick."""
    if run.counters.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        good = run.checkpoints.all()
        raise PretrainError(
            f"the loss or its gradient was not finite for {MOST_SKIPPED_IN_A_ROW} steps in a row (step "
            f"{outcome.step}): start again in another --out with a lower --learning-rate or --precision fp32, "
            f"or find the cause with --detect-anomaly; the last good checkpoint is {good[-1] if good else 'none yet'}"
        )
