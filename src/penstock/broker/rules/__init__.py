"""What a topic was told, and how it is held to it."""
