"""Batch tasks: what they do, and what they ask of the data engine."""
