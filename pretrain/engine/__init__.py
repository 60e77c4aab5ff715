"""How any model of this project is trained: the loop and what it needs. It knows nothing of what is learned."""
