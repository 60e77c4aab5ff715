"""Pretraining: a prepared corpus to a BERT checkpoint, by masked language modelling and next sentence prediction."""

from importlib.machinery import SourceFileLoader
from types import ModuleType

# By its place: under its name another data_prep may be found, which is one of the things that it looks for.
start = ModuleType("data_prep.start")
SourceFileLoader(start.__name__, f"{__path__[0]}/../data_prep/start.py").exec_module(start)
start.begin(__path__[0], needs=("data_prep", "model"))

from typing import TYPE_CHECKING  # noqa: E402

from .engine import process  # noqa: E402

process.settle()

if TYPE_CHECKING:
    from data_prep.errors import Interrupted, UserError

    from .run import pretrain

__all__ = ["Interrupted", "UserError", "pretrain"]
__getattr__, __dir__ = start.offered(
    __name__,
    {"Interrupted": "data_prep.errors", "UserError": "data_prep.errors", "pretrain": "pretrain.run"},
)
