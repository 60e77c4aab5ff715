"""Questions with their contexts: rows, tokens, the best answers and how good they are."""
