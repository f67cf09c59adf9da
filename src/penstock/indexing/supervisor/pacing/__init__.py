"""How much a supervisor does and how often: it rests, scales and looks as its stream needs it."""
