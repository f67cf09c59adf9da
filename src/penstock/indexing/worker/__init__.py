"""The worker: accepts tasks, runs each in its own process, keeps their logs."""

from penstock.indexing.worker.options import WorkerOptions
from penstock.indexing.worker.task_attempts import status_to_json
from penstock.indexing.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions", "status_to_json"]
