"""`make demo`: a year of flights in as events and out as SQL answers."""

from penstock.services.demo.flights import write_files
from penstock.services.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo", "write_files"]
