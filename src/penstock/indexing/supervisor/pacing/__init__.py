"""Pace of a supervisor: when it polls its stream, scales its tasks, or rests."""
