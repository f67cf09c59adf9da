"""Specs of batch tasks: one module for each type, with the checks between fields."""
