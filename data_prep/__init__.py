"""Raw text to a prepared corpus: documents, vocabulary, token ids, sentence pairs."""

from . import start

start.begin(__path__[0])

from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    from .errors import UserError
    from .prepared import PreparedCorpus
    from .run import prepare

__all__ = ["PreparedCorpus", "UserError", "prepare"]
__getattr__, __dir__ = start.offered(
    __name__,
    {"PreparedCorpus": "data_prep.prepared", "UserError": "data_prep.errors", "prepare": "data_prep.run"},
)
