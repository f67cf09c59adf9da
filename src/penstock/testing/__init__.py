"""Penstock testing."""
