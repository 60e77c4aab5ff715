"""Raw text to a prepared corpus: documents, vocabulary, token ids, sentence pairs."""
