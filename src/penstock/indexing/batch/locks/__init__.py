"""The locks of batch tasks: how they are had, and what a task has locked of what it replaces."""
