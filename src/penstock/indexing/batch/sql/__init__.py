"""SQL that writes: statements, converted into the specs of tasks. Pure."""
