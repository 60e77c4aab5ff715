"""What a person at the screen sees."""

from tqdm import tqdm


class Bar(tqdm):
    """A progress bar of tqdm."""

    # Before tqdm 4.70 a bar that a signal leaves half made lacks the attribute, and __del__ prints a traceback.
    disable = True


def say(sentence: str) -> None:
    """Print for a person, at once."""
    print(sentence, flush=True)
