"""Penstock services."""
