"""The streaming task, which runs in a peon.

`StreamingTask` combines the parts; `TaskSequences` and `CommitFile` are pure and hold the whole
stored state of a task.
"""

from penstock.indexing.task.streaming_state import TaskOptions, TaskPorts, TaskResult
from penstock.indexing.task.streaming_task import StreamingTask
from penstock.indexing.task.task_folder import TaskFolder

__all__ = ["StreamingTask", "TaskFolder", "TaskOptions", "TaskPorts", "TaskResult"]
