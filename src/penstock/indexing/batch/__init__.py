"""Batch tasks: their steps, and the protocol of their data engine."""
