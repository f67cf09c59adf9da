"""Processes of one host: their data folder, their launcher, and `penstock up`."""
