"""Mistakes that a person can mend."""


class UserError(Exception):
    """A mistake a person can mend: commands print it as one sentence, no traceback, and exit with 2."""


class Interrupted(BaseException):
    """A signal asked the run to end before it was done. The text says what was saved.

    As KeyboardInterrupt, no `except Exception` of a library may swallow it.
    """


class SaidElsewhere(UserError):
    """A mistake that another process of the same run tells the person of: this one ends without a word."""


class StoppedElsewhere(Interrupted):
    """A signal ended the run, and another process of it tells the person so."""


class PrepError(UserError):
    """A mistake in the corpus or in the settings of data preparation."""


class ReadingFailed(PrepError):
    """The machine could not read a file on; nothing is wrong with what is in it."""
