"""The learning rate of a model, chosen among a few on the validation texts."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from data_prep.console.screen import say
from data_prep.durable import read_object, write_json
from pretrain.engine.distributed import World
from pretrain.engine.process import Interruption

from .errors import FinetuneError
from .resolve import learning_rate, model_config
from .settings import FinetuneSettings
from .training import Material, SeedTraining

# Of the rate that `auto` takes; every model has as many tries.
CANDIDATES = (0.3, 1.0, 3.0)


def candidates(settings: FinetuneSettings) -> list[float]:
    """The rates to try, the lowest first: they depend on the optimizer and on the width of the model."""
    usual = learning_rate(settings.optimizer, model_config(settings.model).hidden_size)
    return [float(f"{share * usual:.2g}") for share in CANDIDATES]


class RateSearch:
    """A training at each rate with the first seed; that of the best rate stays as this seed's.

    Args:
        out: the run's folder. rates.json there says what was found; rates/ holds the trainings until then.
    """

    def __init__(self, settings: FinetuneSettings, out: Path, material: Material, world: World,
                 interruption: Interruption):  # fmt: skip
        self.settings, self.out, self.material = settings, out, material
        self.world, self.interruption = world, interruption

    def found(self) -> dict:
        """{"learning_rate": the best, "tried": {rate: validation scores}, "data": digest}, from rates.json or now."""
        found = self.world.from_main(self._before)
        if not found:
            tried = {f"{rate:g}": self._tried(rate) for rate in candidates(self.settings)}
            found = self.world.from_main(lambda: self._choose(tried))
        self.world.from_main(lambda: self._keep(f"{found['learning_rate']:g}"))
        return found

    def _before(self) -> dict | None:
        path = self.out / "rates.json"
        if not path.exists():
            return None
        found = read_object(path, data=str, learning_rate=float, tried=dict)
        if found and found["data"] == self.material.digest and f"{found['learning_rate']:g}" in found["tried"]:
            return found
        raise FinetuneError(f"{path} is damaged, or of other texts: give another --out")

    def _tried(self, rate: float) -> dict[str, float]:
        say(f"\nLearning rate {rate:g}, seed {self.settings.seed}:")
        settings, folder = replace(self.settings, learning_rate=rate), self.out / "rates" / f"{rate:g}"
        training = SeedTraining(
            settings, settings.seed, folder, self.material, self.world, self.interruption, most_restarts=0
        )
        return training.results()["validation"]

    def _choose(self, tried: dict[str, dict[str, float]]) -> dict:
        best = min(tried, key=lambda rate: self.material.dataset.task.judge(tried[rate], self.settings.metric))
        found = {"learning_rate": float(best), "tried": tried, "data": self.material.digest}
        write_json(self.out / "rates.json", found)
        metric = self.settings.metric
        reached = ", ".join(f"{rate}: {scores[metric]:.3f}" for rate, scores in tried.items())
        say(f"\nLearning rate {best} is the best on the validation texts ({metric.replace('_', '-')} {reached}).")
        return found

    def _keep(self, rate: str) -> None:
        """Give the training at the best rate the name of its seed, and remove the others."""
        training, seed = self.out / "rates" / rate, self.out / f"seed-{self.settings.seed}"
        if training.exists() and not seed.exists():
            os.replace(training, seed)
        shutil.rmtree(self.out / "rates", ignore_errors=True)
