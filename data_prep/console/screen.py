"""What a person at the screen sees."""

from collections.abc import Mapping

from tqdm import tqdm

_LONGEST_EXAMPLE = 400


class Bar(tqdm):
    """A progress bar of tqdm."""

    # Before tqdm 4.70 a bar that a signal leaves half made lacks the attribute, and __del__ prints a traceback.
    disable = True
    # No thread that looks after slow bars: a signal while it starts leaves a traceback when the process ends.
    monitor_interval = 0


def say(sentence: str) -> None:
    """Print for a person, at once."""
    print(sentence, flush=True)


def say_example(number: int, label: str, text: str) -> None:
    """Print a text as a model reads it, cut."""
    shown = text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]} ..."
    say(f"\nExample {number} ({label}): {shown}")


def say_plan(rows: Mapping[str, str]) -> None:
    """Print the plan of a dry run, a name and what is said of it a line."""
    say("\nThe plan (nothing was kept):")
    for name, value in rows.items():
        say(f"  {name:<24}{value}")
