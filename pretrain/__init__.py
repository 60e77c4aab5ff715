"""Pretraining: a prepared corpus to a BERT checkpoint, by masked language modelling and next sentence prediction."""

from importlib.machinery import SourceFileLoader
from types import ModuleType

# By its place: under its name another data_prep may be found, which is one of the things that it looks for.
start = ModuleType("data_prep.start")
SourceFileLoader(start.__name__, f"{__path__[0]}/../data_prep/start.py").exec_module(start)
start.begin(__path__[0], needs=("data_prep", "model"))

from .engine import process  # noqa: E402

process.settle()
