"""Publishes of three kinds, and the offsets that change in the same transaction."""
