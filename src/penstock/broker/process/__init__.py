"""What a broker does as a process, beside serving: its limits, its memory, its rounds."""
