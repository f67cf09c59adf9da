"""The runner: which workers there are, which task is where, and what becomes of both."""
