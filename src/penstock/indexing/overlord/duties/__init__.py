"""Periodic work of the leading overlord: each duty is a module of its own."""

from penstock.indexing.overlord.duties.duty import Duty, DutyRounds, DutyTools

__all__ = ["Duty", "DutyRounds", "DutyTools"]
