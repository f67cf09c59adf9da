"""Overshadowing: which version of each time span is visible, for any kind of item."""
