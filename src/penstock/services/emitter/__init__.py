"""Events about the running of a process, and their sinks, which never block the work."""
