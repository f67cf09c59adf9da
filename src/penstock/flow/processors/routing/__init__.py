"""Processors that route FlowFiles or change their attributes."""
