"""Indexing: tasks that turn events and files into segments, and the processes that run them."""
