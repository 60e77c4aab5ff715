"""What a person at the screen types and sees."""
