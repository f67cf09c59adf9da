"""Topics: their stream partitions, what they were told, and the folder that keeps them."""
