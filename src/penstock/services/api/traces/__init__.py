"""Following one event: from its message to its row, and from a row back to its messages."""
