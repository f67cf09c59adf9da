"""Penstock segments."""
