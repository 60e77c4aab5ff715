"""Documents to a WordPiece tokenizer: counting, training, extending, reading and writing."""
