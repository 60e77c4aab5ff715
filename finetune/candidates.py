"""Several ways to train, of which the validation texts choose one: learning rates, or the grid of the paper."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep.console.screen import say
from data_prep.durable import exists, read_object, write_json
from pretrain.engine.distributed import World
from pretrain.engine.process import Interruption

from . import report
from .names import folder_name
from .resolve import learning_rate, model_config
from .settings import FinetuneError, FinetuneSettings
from .training import Material, SeedTraining, seed_name

# Of the rate that `auto` takes; every model has as many tries.
RATE_SHARES = (0.3, 1.0, 3.0)


def candidate_rates(settings: FinetuneSettings) -> list[float]:
    """The rates to try, the lowest first: they depend on the optimizer and on the width of the model."""
    usual = learning_rate(settings.optimizer, model_config(settings.model).hidden_size)
    return [float(f"{share * usual:.2g}") for share in RATE_SHARES]


def ways(settings: FinetuneSettings) -> dict[str, dict[str, Any]]:
    """What to choose among on the validation texts: a name -> what it changes in the settings."""
    if settings.grid == "paper":
        return paper_grid(settings)
    if settings.learning_rate != "search":
        return {f"{settings.learning_rate:g}": {}}
    return {f"{rate:g}": {"learning_rate": rate} for rate in candidate_rates(settings)}


def paper_grid(settings: FinetuneSettings) -> dict[str, dict[str, Any]]:
    """The grid of the paper (Devlin et al. 2019, section A.3), its rates scaled to the model as `auto` is: name ->
    settings."""
    usual, of_base = candidate_rates(settings)[1], (5e-5, 3e-5, 2e-5)
    found = {}
    for size in (16, 32):
        for rate in of_base:
            for epochs in (2, 3, 4):
                scaled = float(f"{usual * rate / of_base[0]:.2g}")
                found[f"{size} texts, {scaled:g}, {epochs} epochs"] = {
                    "grid": "none", "batch_size": size, "learning_rate": scaled, "budget": f"{epochs}epochs",
                    "evaluations": epochs,
                }  # fmt: skip
    return found


class Search:
    """A training with the first seed for each of several candidates; that of the best one stays as this seed's.

    Args:
        out: the run's folder. NAME.json there says what was found; NAME/ holds the trainings until then.
        candidates: what each changes in the settings, by a name.
        name: "rates" or "grid".
    """

    def __init__(self, settings: FinetuneSettings, out: Path, material: Material, world: World,
                 interruption: Interruption, candidates: Mapping[str, Mapping[str, Any]], name: str):  # fmt: skip
        self.settings, self.out, self.material = settings, out, material
        self.world, self.interruption, self.candidates, self.name = world, interruption, candidates, name

    def found(self) -> dict:
        """{"chosen": the best candidate, "tried": {candidate: validation scores}, "seconds": what the others took,
        "data": digest}."""
        found = self.world.from_main(self._before)
        if not found:
            tried = {name: self._tried(name) for name in self.candidates}
            found = self.world.from_main(lambda: self._choose(tried))
        self.world.from_main(lambda: self._keep(found["chosen"]))
        return found

    def results(self, found: dict) -> dict[str, Any]:
        """For results.json."""
        # Older versions did not write down what the others took.
        seconds = {"search_seconds": found.get("seconds", 0.0)}
        if self.name == "rates":
            return {"learning_rates_tried": found["tried"], "learning_rate_chosen": found["chosen"], **seconds}
        return {"grid": {"chosen": found["chosen"], "tried": found["tried"]}, **seconds}

    def settings_of(self, found: dict) -> FinetuneSettings:
        """The settings with what was chosen."""
        return replace(self.settings, **self.candidates[found["chosen"]])

    def _before(self) -> dict | None:
        path = self.out / f"{self.name}.json"
        if not path.exists():
            return None
        found = read_object(path, data=str, tried=dict)
        if found and "learning_rate" in found:
            # As rates.json was written before there was a grid.
            found["chosen"] = f"{found.pop('learning_rate'):g}"
        if (
            found
            and found["data"] == self.material.digest
            and found.get("chosen") in {*found["tried"]} & {*self.candidates}
        ):
            return found
        raise FinetuneError(f"{path} is damaged, or of other texts: give another --out")

    def _folder(self, name: str) -> Path:
        return self.out / self.name / folder_name(name)

    def _tried(self, name: str) -> dict[str, Any]:
        """The results of a candidate's training."""
        what = "Learning rate " if self.name == "rates" else ""
        say(f"\n{what}{name}, seed {self.settings.seed}:")
        settings = replace(self.settings, **self.candidates[name])
        training = SeedTraining(
            settings, settings.seed, self._folder(name), self.material, self.world, self.interruption,
            most_restarts=0, reads_test=False,
        )  # fmt: skip
        return training.results()

    def _choose(self, results: dict[str, dict[str, Any]]) -> dict:
        metric, tried = self.settings.metric, {name: found["validation"] for name, found in results.items()}
        best = min(tried, key=lambda name: self.material.dataset.task.judge(tried[name], metric))
        seconds = round(sum(found["seconds"] for name, found in results.items() if name != best), 1)
        found = {"chosen": best, "tried": tried, "seconds": seconds, "data": self.material.digest}
        write_json(self.out / f"{self.name}.json", found)
        reached = "; ".join(f"{name}: {report.number(scores[metric])}" for name, scores in tried.items())
        what = "Learning rate " if self.name == "rates" else ""
        say(f"\n{what}{best} is the best on the validation texts ({metric.replace('_', '-')} {reached}).")
        return found

    def _keep(self, name: str) -> None:
        """Give the training of the best one the name of its seed, and remove the others."""
        training, seed = self._folder(name), self.out / seed_name(self.settings.seed)
        if exists(training) and not exists(seed):
            os.replace(training, seed)
        shutil.rmtree(self.out / self.name, ignore_errors=True)
