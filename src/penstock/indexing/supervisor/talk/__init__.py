"""What a supervisor says to its tasks: how they stand, and where they end."""
