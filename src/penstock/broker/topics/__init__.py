"""Topics: their stream partitions, their options, and the folder that contains them."""
