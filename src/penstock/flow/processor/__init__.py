"""API for writing processors: one import provides everything that a user's processor needs.

from penstock.flow.processor import ProcessContext, ProcessSession, Processor, Property
"""

from penstock.flow.errors import ContentMissing, ProcessError, SessionMisuse, Terminated
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor.expression_language import Expression
from penstock.flow.processor.process_context import ProcessContext, ProcessorHost, ProcessorIdentity
from penstock.flow.processor.processor import (
    InputRequirement,
    InvalidConfiguration,
    Problem,
    Processor,
)
from penstock.flow.processor.properties import (
    DynamicExpressions,
    DynamicProperties,
    ExpressionProperty,
    Property,
)
from penstock.flow.processor.property_types import (
    BOOL,
    FLOAT,
    INT,
    PATH,
    PERIOD,
    REGEX,
    SIZE,
    STR,
    URL,
    PropertyType,
    PropertyValue,
    choice,
    list_of,
)
from penstock.flow.processor_state import StateManager
from penstock.flow.relationships import Relationship, RelationshipRetry, RetryBackoff
from penstock.flow.session.process_session import ProcessSession

__all__ = [
    "BOOL",
    "FLOAT",
    "INT",
    "PATH",
    "PERIOD",
    "REGEX",
    "SIZE",
    "STR",
    "URL",
    "ContentMissing",
    "DynamicExpressions",
    "DynamicProperties",
    "Expression",
    "ExpressionProperty",
    "FlowFile",
    "InputRequirement",
    "InvalidConfiguration",
    "Problem",
    "ProcessContext",
    "ProcessError",
    "ProcessSession",
    "Processor",
    "ProcessorHost",
    "ProcessorIdentity",
    "Property",
    "PropertyType",
    "PropertyValue",
    "Relationship",
    "RelationshipRetry",
    "RetryBackoff",
    "SessionMisuse",
    "StateManager",
    "Terminated",
    "choice",
    "list_of",
]
