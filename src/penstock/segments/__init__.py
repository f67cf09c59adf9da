"""Segments, their visibility, and the locations of their files."""
