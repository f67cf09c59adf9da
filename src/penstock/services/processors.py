"""The processors that flows may name: those that come with Penstock, and those that are listed.

Owns the table of those that come with Penstock, and the registry of all for the flow service and
the commands. Nothing is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.flow.processor.processor_registry import ProcessorRegistry, installed_paths
from penstock.flow.processors.builtin import BUILTIN
from penstock.flow.user_modules import SERVICE_MODULES, FlowModules
from penstock.spark.flow.builtin import SPARK_PROCESSORS

PROCESSORS: Final[Mapping[str, str]] = {**BUILTIN, **SPARK_PROCESSORS}


def registry_for(flow_modules: Iterable[str]) -> ProcessorRegistry:
    """Return the registry of this process, and let its processors use the same list.

    Args:
        flow_modules: What `--flow-modules` lists.

    Raises:
        InvalidRequest: A folder or package of the list does not exist.
    """
    modules = FlowModules(flow_modules)
    SERVICE_MODULES.set(modules)
    return ProcessorRegistry(PROCESSORS, installed_paths(), modules)
