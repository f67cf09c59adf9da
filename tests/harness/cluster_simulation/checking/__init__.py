"""Conditions that must hold after each commit and at the end of a run."""
