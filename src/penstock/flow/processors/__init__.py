"""Processors that are part of Penstock, grouped by their input."""
