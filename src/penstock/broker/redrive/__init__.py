"""Redrive of dead letters: each is published to its topic again, exactly once."""
