"""What was reached on text and hardware that are known: the rows of README.md, for a plan to stand beside."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A pretraining that was run on 2 CPU cores with bf16."""

    text: str
    tokens: int
    """Of its training part."""
    seconds: float
    """Of its budget."""
    model: str
    loss: float
    """Of masked words on held-out text, in nats."""
    unigram_entropy: float
    """The same of word frequencies alone."""
    accuracy: float

    def __str__(self) -> str:
        return (
            f"{self.text} ({self.tokens / 1e6:.1f} M tokens), {self.seconds / 60:.0f} minutes on 2 CPU cores, "
            f"{self.model}: MLM loss {self.loss:.2f} (word frequencies {self.unigram_entropy:.2f}), accuracy "
            f"{self.accuracy:.1%}"
        )


MEASURED = (
    Measured("the built-in corpus", 2_400_000, 240, "4x128", 3.70, 6.23, 0.390),
    Measured("clinical-trial articles", 10_900_000, 600, "4x128", 3.72, 6.95, 0.397),
    Measured("clinical-trial articles", 10_900_000, 3600, "4x256", 3.17, 6.95, 0.456),
    Measured("Korean film reviews", 800_000, 720, "4x256", 5.83, 7.41, 0.194),
)


def nearest(tokens: float, seconds: float) -> Measured:
    """The run whose amount of text and time are nearest, both by their logarithms."""

    def distance(row: Measured) -> float:
        return abs(math.log(row.tokens / max(1, tokens))) + abs(math.log(row.seconds / max(1, seconds)))

    return min(MEASURED, key=distance)
