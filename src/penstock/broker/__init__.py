"""Penstock broker."""
