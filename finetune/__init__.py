"""A pretrained BERT and labelled texts -> a model of their labels, its measured results, and predictions."""

from importlib.machinery import SourceFileLoader
from types import ModuleType

# By its place: under its name another data_prep may be found, which is one of the things that it looks for.
start = ModuleType("data_prep.start")
SourceFileLoader(start.__name__, f"{__path__[0]}/../data_prep/start.py").exec_module(start)
start.begin(__path__[0], needs=("data_prep", "model", "pretrain"))

from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    from data_prep.errors import Interrupted, UserError

    from .predictor import Classifier, Predictor
    from .run import finetune
    from .vectors.embedder import Embedder

__all__ = ["Classifier", "Embedder", "Interrupted", "Predictor", "UserError", "finetune"]
__getattr__, __dir__ = start.offered(
    __name__,
    {
        "Classifier": "finetune.predictor",
        "Embedder": "finetune.vectors.embedder",
        "Interrupted": "data_prep.errors",
        "Predictor": "finetune.predictor",
        "UserError": "data_prep.errors",
        "finetune": "finetune.run",
    },
)
