"""Penstock spark."""
