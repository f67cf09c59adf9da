"""Tasks that wait: acquiring their locks in order, and explaining their waits."""
