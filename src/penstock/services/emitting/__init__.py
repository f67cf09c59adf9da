"""Events about the running of a process, and where they go: never in the way of the work."""
