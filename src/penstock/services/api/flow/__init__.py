"""The HTTP API of flows."""

from penstock.services.api.flow.flow_routes import FlowRoutes

__all__ = ["FlowRoutes"]
