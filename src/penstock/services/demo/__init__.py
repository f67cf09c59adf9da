"""`make demo`: ingests a year of flights as events, and queries them in SQL."""

from penstock.services.demo.flights import write_files
from penstock.services.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo", "write_files"]
