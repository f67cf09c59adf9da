"""Parts of inputs: secrets, databases."""
