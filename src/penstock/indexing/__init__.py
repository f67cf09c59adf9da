"""Penstock indexing."""
