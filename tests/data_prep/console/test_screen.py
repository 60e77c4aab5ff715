"""What a person at the screen sees."""

import os
import sys
import threading

import pytest

from data_prep.console.command_line import main
from data_prep.console.screen import Bar, say, without_reader
from data_prep.errors import Interrupted
from data_prep.settings import PrepSettings

full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def test_a_bar_starts_no_thread():
    """One that a signal meets while it starts would leave a traceback when the process ends."""
    before = set(threading.enumerate())
    with Bar(total=1, disable=None):
        assert set(threading.enumerate()) == before


@full_disk
def test_where_nothing_can_be_printed_any_more_the_work_goes_on(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        say("the disk of the log is full")
        # Later ones go nowhere at once.
        print("again", flush=True)
        assert os.fstat(full.fileno()).st_rdev == os.stat(os.devnull).st_rdev


def test_a_reader_that_has_ended_ends_a_command_but_no_long_work(unread):
    with unread(), pytest.raises(BrokenPipeError):
        try:
            say("a line")
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with unread(), without_reader():
        say("a line")
        print("another one", flush=True)


@full_disk
def test_the_exit_code_is_the_same_where_nothing_can_be_printed(monkeypatch):
    def stopped(settings):
        raise Interrupted("stopped by SIGTERM")

    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        given = ["--corpus=a.txt"]
        assert main(PrepSettings, stopped, prog="python -m x", description="", argv=given) == 75
        assert main(PrepSettings, stopped, prog="python -m x", description="", argv=["--corpsu=a"]) == 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
