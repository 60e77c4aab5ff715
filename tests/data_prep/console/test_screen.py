"""What a person at the screen sees."""

import threading

from data_prep.console.screen import Bar


def test_a_bar_starts_no_thread():
    """One that a signal meets while it starts would leave a traceback when the process ends."""
    before = set(threading.enumerate())
    with Bar(total=1, disable=None):
        assert set(threading.enumerate()) == before
