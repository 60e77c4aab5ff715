"""Vectors of texts: a BERT that gives them, and the files and folders that hold them."""
