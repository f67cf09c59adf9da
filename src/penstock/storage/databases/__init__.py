"""Databases of others, which are read."""
