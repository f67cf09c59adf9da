"""The task queue's entries for active tasks: admission, comparison with the store, ends."""
