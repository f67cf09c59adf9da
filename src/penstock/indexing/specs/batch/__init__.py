"""The specs of batch tasks: what a user may ask of a task, and the contradictions refused."""
