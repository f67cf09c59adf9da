"""Table of the built-in processors: name and import path.

Owns the table. Does not own the lookup (`processor.processor_registry`). It contains paths
instead of classes, so that a module is imported only when a flow names its processor: some need
packages that are not always installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_HERE: Final = "penstock.flow.processors"

BUILTIN: Final[Mapping[str, str]] = {
    "ConsumeTopic": f"{_HERE}.topics.consume_topic:ConsumeTopic",
    "ConvertRecord": f"{_HERE}.records.convert_record:ConvertRecord",
    "DetectDuplicate": f"{_HERE}.routing.detect_duplicate:DetectDuplicate",
    "EvaluateJsonPath": f"{_HERE}.routing.evaluate_json_path:EvaluateJsonPath",
    "FetchFile": f"{_HERE}.files.get_files:FetchFile",
    "GenerateFlowFile": f"{_HERE}.generate_flowfile:GenerateFlowFile",
    "GetFile": f"{_HERE}.files.get_files:GetFile",
    "InvokeHTTP": f"{_HERE}.http.invoke_http:InvokeHTTP",
    "ListFiles": f"{_HERE}.files.get_files:ListFiles",
    "ListenHTTP": f"{_HERE}.http.listen_http:ListenHTTP",
    "LogAttribute": f"{_HERE}.routing.attributes:LogAttribute",
    "LookupAttribute": f"{_HERE}.lookups:LookupAttribute",
    "LookupRecord": f"{_HERE}.lookups:LookupRecord",
    "MergeRecord": f"{_HERE}.records.merge_record:MergeRecord",
    "Notify": f"{_HERE}.routing.wait_notify:Notify",
    "PublishTopic": f"{_HERE}.topics.publish_topic:PublishTopic",
    "PutDatasource": f"{_HERE}.topics.put_datasource:PutDatasource",
    "PutFile": f"{_HERE}.files.put_file:PutFile",
    "RetryFlowFile": f"{_HERE}.routing.retry_flowfile:RetryFlowFile",
    "RouteOnAttribute": f"{_HERE}.routing.attributes:RouteOnAttribute",
    "RouteOnContent": f"{_HERE}.routing.route_on_content:RouteOnContent",
    "SplitRecord": f"{_HERE}.records.split_record:SplitRecord",
    "TailFile": f"{_HERE}.files.tail_file:TailFile",
    "UpdateAttribute": f"{_HERE}.routing.attributes:UpdateAttribute",
    "ValidateRecord": f"{_HERE}.records.validate_record:ValidateRecord",
    "Wait": f"{_HERE}.routing.wait_notify:Wait",
}
