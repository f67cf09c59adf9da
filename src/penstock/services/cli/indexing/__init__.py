"""The commands of indexing: tasks, supervisors, segments, rules, compaction, workers."""
