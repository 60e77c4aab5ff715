"""Raw text to a prepared corpus: documents, vocabulary, token ids, sentence pairs."""

from . import start

start.begin(__path__[0])
