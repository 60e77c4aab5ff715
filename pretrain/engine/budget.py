"""How long a run lasts: minutes, steps, epochs or tokens; and how far it is, as a number from 0 to 1."""

import re
from dataclasses import dataclass
from typing import Literal, Self

from .errors import PretrainError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmb]?)\s*(step|epoch|token)s?")

Unit = Literal["seconds", "steps", "epochs", "tokens"]
_COUNTED: dict[str, Unit] = {"step": "steps", "epoch": "epochs", "token": "tokens"}


@dataclass(frozen=True)
class Budget:
    """An amount of `unit`."""

    amount: float
    unit: Unit

    @classmethod
    def parse(cls, text: str, option: str = "--budget") -> Self:
        """Read `30m`, `2h`, `5000steps`, `3epochs`, `1Btokens`.

        Raises:
            PretrainError: it is none of these, or not positive.
        """
        text = text.strip().lower()
        if match := _TIME.fullmatch(text):
            found = cls(float(match[1]) * _SECONDS[match[2]], "seconds")
        elif match := _COUNT.fullmatch(text):
            found = cls(float(match[1]) * _SCALE[match[2]], _COUNTED[match[3]])
        else:
            units = "90s, 30m, 2h, 5000steps, 3epochs or 1Btokens"
            raise PretrainError(f"{option} {text!r} is not understood: write {units}")
        if found.amount <= 0:
            raise PretrainError(f"{option} {text!r} is nothing: give a positive amount")
        return found

    @property
    def is_counted(self) -> bool:
        """Whether progress is counted, so that a run can be repeated bit for bit, or measured by the clock."""
        return self.unit != "seconds"

    def used(self, seconds: float, steps: int, epochs: float, tokens: int) -> float:
        """How much of it is used, in its unit, at most all."""
        return min(self.amount, {"seconds": seconds, "steps": steps, "epochs": epochs, "tokens": tokens}[self.unit])
