"""The ways in which users move the committed offsets of a supervisor."""
