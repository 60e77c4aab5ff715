"""What a person at the screen sees."""

import errno
import os
import sys
import threading

import pytest

from data_prep.console.command_line import main
from data_prep.console.screen import Bar, heard_or_not, say
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


@pytest.mark.parametrize("reader_may_end", [False, True])
def test_a_reader_that_has_ended_ends_a_command_but_no_training(monkeypatch, reader_may_end):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        try:
            with heard_or_not(reader_may_end):
                print("a line", flush=True)
            ended = False
        except BrokenPipeError as error:
            assert error.errno == errno.EPIPE
            ended = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    assert ended is not reader_may_end


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
