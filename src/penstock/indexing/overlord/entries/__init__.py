"""Active tasks, as the task queue keeps them: how they come, are compared, and end."""
