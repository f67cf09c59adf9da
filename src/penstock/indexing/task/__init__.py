"""The streaming task: what runs in a peon.

`StreamingTask` puts the parts together; `Sequences` and `Commit` are pure, and are all that a task
has to remember.
"""

from penstock.indexing.task.folder import TaskFolder
from penstock.indexing.task.state import TaskOptions, TaskPorts
from penstock.indexing.task.streaming import StreamingTask, TaskResult

__all__ = ["StreamingTask", "TaskFolder", "TaskOptions", "TaskPorts", "TaskResult"]
