"""Penstock storage."""
