"""One file for each task: what it reads, how it is encoded, what it learns, how it is judged."""
