"""The HTTP API of flows."""

from penstock.services.api.flow.routes import FlowRoutes

__all__ = ["FlowRoutes"]
