"""Protocol between a supervisor and its tasks: reports, checkpoints and ends."""
