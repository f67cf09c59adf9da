"""A channel of a topic: who has which message, and what is kept of that on disk."""
