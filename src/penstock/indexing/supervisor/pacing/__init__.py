"""How much a supervisor does: with how many task groups, and whether with any."""
