"""Strangers' files to documents: which files there are, how they are read, what a document and a line in them is."""
