"""The worker: takes tasks, runs each in a process of its own, keeps their logs."""

from penstock.indexing.worker.worker import Worker, WorkerOptions, status_to_json

__all__ = ["Worker", "WorkerOptions", "status_to_json"]
