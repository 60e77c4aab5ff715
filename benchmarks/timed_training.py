"""One training by the clock, for learning.py: the project's own run, with a clock that stands still in evaluations.

The run is `pretrain.pretraining.Pretraining` itself, from settings to model: model, optimizer, schedule, data and loop
are those of `python -m pretrain.run`. Three things differ. The clock starts when the model is ready (imports, opening
and checking the corpus and making the model are outside), and stands still from the start of an evaluation until the
loop goes on, which leaves out checkpoints and pictures too; no checkpoint is written. The held-out examples are the
same for every run: the product takes as many as fit into a share of the budget. A budget may also be counted in steps.
"""

import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from data_prep.prepared import PreparedCorpus
from data_prep.settings import ExampleSettings
from pretrain.build import make_data
from pretrain.engine.distributed import World
from pretrain.engine.loop import Run
from pretrain.engine.process import Interruption
from pretrain.engine.step import Learner
from pretrain.evaluate import Evaluation, EvaluationPlan
from pretrain.objectives import bert_objective
from pretrain.pretraining import Pretraining, resolved
from pretrain.resolve import resolve
from pretrain.settings import PretrainSettings


@dataclass(frozen=True)
class Terms:
    """What all runs of a table have in common."""

    budget: str
    """Of training, evaluations left out, as `--budget` takes it."""
    device: str
    sequence_length: int
    """Of the held-out examples, and of the training examples unless a variant says otherwise."""
    points: int
    """Of the curve, the last one being the result."""
    examples_a_point: int
    """Held-out examples for each of them, but the last."""
    examples: int
    """Held-out examples for the result."""

    def settings(self, prepared: Path) -> PretrainSettings:
        """The default settings on this corpus; every run is evaluated in their precision and on their examples."""
        examples = ExampleSettings(sequence_length=self.sequence_length)
        given = {"prepared": str(prepared), "device": self.device, "budget": self.budget, "examples": examples}
        return resolve(PretrainSettings(**given))


class Stopwatch:
    """Seconds since it was made, without those between `stop` and `go_on`."""

    def __init__(self):
        self._began, self._stopped = time.monotonic(), None

    def seconds(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._began

    def stop(self) -> None:
        """Stand still, after what a GPU has still to do."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._stopped = time.monotonic()

    def go_on(self) -> None:
        if self._stopped is not None:
            self._began += time.monotonic() - self._stopped
            self._stopped = None


class Judge:
    """Evaluates on the frozen held-out examples, masked words and next sentences, and keeps what it found."""

    def __init__(self, prepared: PreparedCorpus, terms: Terms):
        settings, objective = (
            terms.settings(prepared.folder),
            bert_objective(prepared.unigram_counts, prepared.next_sentence),
        )
        self.evaluation: Evaluation = make_data(settings, prepared, objective, World())[2]
        self.prepared, self.terms = prepared, terms
        self.curve: list[dict] = []
        self.seconds = 0.0

    def __call__(self, model: torch.nn.Module, count: int, trained: float, steps: int, tokens: int) -> dict[str, float]:
        """Held-out results on the first `count` examples, after `trained` seconds; `tokens` are real, not padding."""
        began = time.monotonic()
        found = self.evaluation(model, count)
        self.seconds += time.monotonic() - began
        self.curve.append({"seconds": trained, "steps": steps, "tokens": tokens, **found})
        print(f"{trained:6.1f} s  {tokens:,} tokens  MLM loss {found['mlm_loss']:.4f}", file=sys.stderr, flush=True)
        return found

    def row(self, **facts) -> dict:
        """The last results as a row of the table, the whole curve, and `facts`."""
        last = self.curve[-1]
        return {
            "mlm_loss": round(last["mlm_loss"], 4),
            "mlm_accuracy": round(100 * last["mlm_accuracy"], 2),
            "nsp_accuracy": round(100 * last["nsp_accuracy"], 2) if "nsp_accuracy" in last else "",
            "nats_a_character": round(last["mlm_loss"] / self._characters_a_target(), 4),
            "steps": last["steps"],
            "tokens": last["tokens"],
            "seconds": round(last["seconds"], 1),
            "evaluation_seconds": round(self.seconds, 1),
            "curve": self.curve,
            **facts,
        }

    def _characters_a_target(self) -> float:
        """Mean length of the masked pieces of the result, `##` not counted; [UNK] stands for one character at least."""
        tokenizer = self.prepared.tokenizer
        length = np.array([len(piece.removeprefix("##")) for piece in tokenizer.vocabulary])
        length[tokenizer.unk_id] = 1
        examples = self.evaluation.examples[: self.terms.examples]
        labels = [batch.masked_targets.numpy() for batch in self.evaluation.maker.micro_batches(examples)]
        return float(length[np.concatenate(labels)].mean())


class TimedRun(Run):
    """A run by a stopwatch of its own, which starts now; it writes no checkpoint."""

    def __post_init__(self):
        super().__post_init__()
        self.stopwatch = Stopwatch()

    def seconds(self) -> float:
        return self.stopwatch.seconds()

    def save(self, position) -> None:
        """The loop's last act of an evaluation: the clock goes on."""
        self.stopwatch.go_on()

    def checkpoint_is_due(self) -> bool:
        return False


class TimedPretraining(Pretraining):
    """A pretraining on a `TimedRun`, evaluated by a `Judge`."""

    def __init__(self, settings: PretrainSettings, out: Path, terms: Terms):
        super().__init__(settings, out, World(), Interruption())
        self.plan = EvaluationPlan(terms.examples_a_point, terms.examples)
        self.judge = Judge(self.prepared, terms)

    def evaluation_plan(self, model, state: dict) -> EvaluationPlan:
        return self.plan

    def make_run(self, learner: Learner, state: dict, plan: EvaluationPlan) -> TimedRun:
        run = super().make_run(learner, state, plan)
        self.timed = TimedRun(**{field.name: getattr(run, field.name) for field in fields(run)})
        return self.timed

    def evaluate(self, evaluation: Evaluation, model: torch.nn.Module, count: int) -> dict[str, float]:
        self.timed.stopwatch.stop()
        counters = self.timed.counters
        return self.judge(model, count, self.timed.seconds(), counters.step, counters.tokens)


def ours(settings: PretrainSettings, terms: Terms) -> dict:
    """The row of a training with these settings; what it prints goes to stderr, what it writes is removed again.

    Raises:
        PretrainError, PrepError: the settings cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="learning-") as folder, redirect_stdout(sys.stderr):
        settings = resolved(settings, Path(folder))
        torch.set_num_threads(settings.threads)
        pretraining = TimedPretraining(settings, Path(folder), terms)
        pretraining.run()
    return pretraining.judge.row(settings=asdict(pretraining.settings), threads=torch.get_num_threads())
