"""Table of the built-in processors: name and import path.

Owns the table. Does not own the lookup (`processor.registry`). It contains paths instead of
classes, so that a module is imported only when a flow names its processor: some need packages that
are not always installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_HERE: Final = "penstock.flow.processors"

BUILTIN: Final[Mapping[str, str]] = {
    "ConsumeTopic": f"{_HERE}.topics.consuming:ConsumeTopic",
    "ConvertRecord": f"{_HERE}.records.convert:ConvertRecord",
    "DetectDuplicate": f"{_HERE}.routing.duplicates:DetectDuplicate",
    "EvaluateJsonPath": f"{_HERE}.routing.jsonpath:EvaluateJsonPath",
    "FetchFile": f"{_HERE}.files.taking:FetchFile",
    "GenerateFlowFile": f"{_HERE}.generate:GenerateFlowFile",
    "GetFile": f"{_HERE}.files.taking:GetFile",
    "InvokeHTTP": f"{_HERE}.http.invoke:InvokeHTTP",
    "ListFiles": f"{_HERE}.files.taking:ListFiles",
    "ListenHTTP": f"{_HERE}.http.listen:ListenHTTP",
    "LogAttribute": f"{_HERE}.routing.attributes:LogAttribute",
    "MergeRecord": f"{_HERE}.records.merge:MergeRecord",
    "Notify": f"{_HERE}.routing.waiting:Notify",
    "PublishTopic": f"{_HERE}.topics.publishing:PublishTopic",
    "PutDatasource": f"{_HERE}.topics.datasource:PutDatasource",
    "PutFile": f"{_HERE}.files.putting:PutFile",
    "RetryFlowFile": f"{_HERE}.routing.retries:RetryFlowFile",
    "RouteOnAttribute": f"{_HERE}.routing.attributes:RouteOnAttribute",
    "RouteOnContent": f"{_HERE}.routing.content:RouteOnContent",
    "SplitRecord": f"{_HERE}.records.split:SplitRecord",
    "TailFile": f"{_HERE}.files.tail:TailFile",
    "UpdateAttribute": f"{_HERE}.routing.attributes:UpdateAttribute",
    "ValidateRecord": f"{_HERE}.records.validate:ValidateRecord",
    "Wait": f"{_HERE}.routing.waiting:Wait",
}
