"""`make demo`: ingests a year of flights as events, and queries them in SQL."""

from penstock.services.demo.demo_run import DemoOptions, run_demo
from penstock.services.demo.flights import write_files

__all__ = ["DemoOptions", "run_demo", "write_files"]
