"""Overshadowing: which versions of the content of time are visible, for any kind of item."""
