"""Access: principals, their rights, and the one function that decides."""
