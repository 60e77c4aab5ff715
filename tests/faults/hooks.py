"""What is done to a process under test before its `main`: its surroundings made slow, small or faulty."""

import os
import resource
import time

from finetune import training
from pretrain import objective
from pretrain.engine import counters, distributed, loop
from pretrain.engine.settings import PretrainError


def slow_evaluation() -> None:
    """Each micro-batch of an evaluation takes two seconds longer."""
    of_a_batch = objective.PretrainingObjective.baseline_sums

    def slow(self, *given):
        time.sleep(2)
        return of_a_batch(self, *given)

    objective.PretrainingObjective.baseline_sums = slow


def slow_steps() -> None:
    """Each step takes two seconds longer."""
    one_step = loop.step

    def slow(run, batches):
        time.sleep(2)
        return one_step(run, batches)

    loop.step = slow


def large_loss_scale() -> None:
    """In fp16 the gradients of the first steps overflow."""
    as_given = counters.Counters.__post_init__

    def large(self):
        as_given(self)
        if self.step == 0:
            self.loss_scale = 2.0**24

    counters.Counters.__post_init__ = large


def judged_soon() -> None:
    """Whether a fine-tuning learned anything is asked after ten steps, not fifty; one that is left alone ends soon."""
    training.FEWEST_STEPS = 10
    short_grace()


def short_grace() -> None:
    """One that is left by another waits less long for its reason."""
    distributed._GRACE = 1.0


def main_alone_writes() -> None:
    """No process but the first can write a byte into any file."""
    if os.environ["RANK"] != "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def second_process_fails() -> None:
    """In step 3, with a mistake that a person can mend."""
    _second_process_raises(PretrainError("the moon is full: wait for a day"))


def second_process_has_a_fault() -> None:
    """In step 3, with an error of the program itself."""
    _second_process_raises(ValueError("a fault of the program"))


def _second_process_raises(error: Exception) -> None:
    read = loop.read

    def failing(run, *facts, **options):
        if run.counters.step == 3:
            raise error
        read(run, *facts, **options)

    if os.environ["RANK"] == "1":
        loop.read = failing
