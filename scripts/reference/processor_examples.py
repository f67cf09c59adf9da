"""One example flow for each processor, and what happens when its processor runs on a FlowFile.

A test validates each flow, and runs the processors for which `RUNS` has an input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FLOWS: Final[Mapping[str, str]] = {
    "ConsumeTopic": """
name: archive
processors:
  Consume:
    type: ConsumeTopic
    properties: {topic: clicks, channel: archive, batch_size: 500}
  Write:
    type: PutFile
    properties: {folder: /data/archive}
    auto_terminated: [success, failure]
connections:
  - {from: Consume.success, to: Write}
""",
    "ConvertRecord": """
name: convert
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Convert:
    type: ConvertRecord
    properties: {input_format: csv, output_format: json-lines}
    auto_terminated: failure
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Convert}
  - {from: Convert.success, to: Write}
""",
    "DetectDuplicate": """
name: deduplicate
processors:
  Listen: {type: ListenHTTP, properties: {port: 9000, header_attributes: 'X-Id'}}
  Detect:
    type: DetectDuplicate
    properties: {key: '${X-Id}', forget_after: 7 days}
    auto_terminated: [duplicate, failure]
  Publish: {type: PublishTopic, properties: {topic: orders}, auto_terminated: [success, failure]}
connections:
  - {from: Listen.success, to: Detect}
  - {from: Detect.non-duplicate, to: Publish}
""",
    "EvaluateJsonPath": """
name: extract
processors:
  Consume: {type: ConsumeTopic, properties: {topic: orders, channel: extract}}
  Extract:
    type: EvaluateJsonPath
    properties: {customer: $.customer.id, total: $.total}
    auto_terminated: [unmatched, failure]
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Consume.success, to: Extract}
  - {from: Extract.matched, to: Log}
""",
    "FetchFile": """
name: fetch
processors:
  List: {type: ListFiles, properties: {folder: /data/in}}
  Fetch:
    type: FetchFile
    concurrent_tasks: 4
    auto_terminated: [not.found, permission.denied, failure]
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: List.success, to: Fetch}
  - {from: Fetch.success, to: Write}
""",
    "GenerateFlowFile": """
name: generate
processors:
  Generate:
    type: GenerateFlowFile
    schedule: every 10 sec
    properties: {custom_text: '{"user": 1}', mime_type: application/json}
  Publish: {type: PublishTopic, properties: {topic: clicks}, auto_terminated: [success, failure]}
connections:
  - {from: Generate.success, to: Publish}
""",
    "GetFile": """
name: read
processors:
  Read:
    type: GetFile
    schedule: every 10 sec
    properties: {folder: /data/in, file_filter: '.*[.]csv', minimum_age: 5 sec}
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Write}
""",
    "InvokeHTTP": """
name: post
processors:
  Consume: {type: ConsumeTopic, properties: {topic: orders, channel: post}}
  Post:
    type: InvokeHTTP
    properties: {url: 'http://127.0.0.1:9000/orders', method: POST, content_type: application/json}
    retry: {retry: 5}
    auto_terminated: [original, response, retry, no.retry, failure]
connections:
  - {from: Consume.success, to: Post}
""",
    "ListFiles": """
name: list
processors:
  List:
    type: ListFiles
    schedule: every 1 min
    properties: {folder: 's3://bucket/in', file_filter: '.*[.]parquet'}
  Fetch:
    type: FetchFile
    auto_terminated: [not.found, permission.denied, failure]
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: List.success, to: Fetch}
  - {from: Fetch.success, to: Write}
""",
    "ListenHTTP": """
name: listen
processors:
  Listen: {type: ListenHTTP, properties: {port: 9000, path: /events}}
  Publish:
    type: PublishTopic
    properties: {topic: events, message: line}
    auto_terminated: [success, failure]
connections:
  - {from: Listen.success, to: Publish}
""",
    "LogAttribute": """
name: log
processors:
  List: {type: ListFiles, properties: {folder: /data/in}}
  Log:
    type: LogAttribute
    properties: {level: info, prefix: 'listed: '}
    auto_terminated: success
connections:
  - {from: List.success, to: Log}
""",
    "LookupAttribute": """
name: name-countries
processors:
  Listen: {type: ListenHTTP, properties: {port: 9000, header_attributes: 'X-Country'}}
  Name:
    type: LookupAttribute
    properties: {lookup_name: countries, key: '${X-Country}', country.name: name}
    auto_terminated: [unmatched, failure]
  Publish: {type: PublishTopic, properties: {topic: orders}, auto_terminated: [success, failure]}
connections:
  - {from: Listen.success, to: Name}
  - {from: Name.matched, to: Publish}
""",
    "LookupRecord": """
name: name-countries-of-records
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Name:
    type: LookupRecord
    properties: {input_format: csv, output_format: json-lines, lookup_name: countries,
      key_field: country, country_name: name}
    auto_terminated: failure
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Name}
  - {from: Name.success, to: Write}
""",
    "MergeRecord": """
name: merge
processors:
  Consume: {type: ConsumeTopic, properties: {topic: clicks, channel: archive}}
  Merge:
    type: MergeRecord
    properties:
      input_format: json-lines
      output_format: parquet
      min_records: 100000
      max_age: 5 min
    auto_terminated: [original, failure]
  Write: {type: PutFile, properties: {folder: /data/archive}, auto_terminated: [success, failure]}
connections:
  - {from: Consume.success, to: Merge}
  - {from: Merge.merged, to: Write}
""",
    "Notify": """
name: notify
processors:
  Read: {type: GetFile, properties: {folder: /data/done}}
  Notify:
    type: Notify
    properties: {signal: '${filename}', signals: batches}
    auto_terminated: [success, failure]
connections:
  - {from: Read.success, to: Notify}
""",
    "PublishTopic": """
name: publish
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Publish:
    type: PublishTopic
    properties: {topic: clicks, message: line, key: '${filename}'}
    retry: {failure: 5}
    auto_terminated: [success, failure]
connections:
  - {from: Read.success, to: Publish}
""",
    "PutDatasource": """
name: ingest
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Put:
    type: PutDatasource
    properties: {datasource: clicks}
    retry: {failure: 5}
    auto_terminated: [success, failure]
connections:
  - {from: Read.success, to: Put}
""",
    "PutFile": """
name: write
processors:
  Consume: {type: ConsumeTopic, properties: {topic: clicks, channel: files}}
  Write:
    type: PutFile
    properties: {folder: '/data/${topic.name}', conflict: replace}
    auto_terminated: [success, failure]
connections:
  - {from: Consume.success, to: Write}
""",
    "RetryFlowFile": """
name: retry
processors:
  Consume: {type: ConsumeTopic, properties: {topic: orders, channel: post}}
  Post:
    type: InvokeHTTP
    properties: {url: 'http://127.0.0.1:9000/orders', method: POST}
    auto_terminated: [original, response, no.retry, failure]
  Retry:
    type: RetryFlowFile
    properties: {most: 3}
    auto_terminated: [exceeded, failure]
connections:
  - {from: Consume.success, to: Post}
  - {from: Post.retry, to: Retry}
  - {from: Retry.retry, to: Post}
""",
    "RouteOnAttribute": """
name: route
processors:
  List: {type: ListFiles, properties: {folder: /data/in}}
  Route:
    type: RouteOnAttribute
    properties: {large: '${file.size:gt(1000000)}'}
    auto_terminated: [unmatched, failure]
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: List.success, to: Route}
  - {from: Route.large, to: Log}
""",
    "RouteOnContent": """
name: route
processors:
  Read: {type: GetFile, properties: {folder: /data/logs}}
  Route:
    type: RouteOnContent
    properties: {match: find, errors: 'ERROR|FATAL'}
    auto_terminated: [unmatched, failure]
  Write: {type: PutFile, properties: {folder: /data/errors}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Route}
  - {from: Route.errors, to: Write}
""",
    "SparkSQL": """
name: enrich
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Enrich:
    type: SparkSQL
    properties:
      input_format: csv
      output_format: json-lines
      tables: airlines=/data/airlines.csv
      enriched: SELECT input.*, airlines.name FROM input LEFT JOIN airlines USING (carrier)
    auto_terminated: [original, failure]
  Publish:
    type: PublishTopic
    properties: {topic: flights, message: line}
    auto_terminated: [success, failure]
connections:
  - {from: Read.success, to: Enrich}
  - {from: Enrich.enriched, to: Publish}
""",
    "SparkScript": """
name: script
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Clean:
    type: SparkScript
    properties:
      input_format: csv
      output_format: parquet
      function: cleaning:clean
      outputs: cleaned
    auto_terminated: [original, failure]
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Clean}
  - {from: Clean.cleaned, to: Write}
""",
    "SplitRecord": """
name: split
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Split:
    type: SplitRecord
    properties: {input_format: csv, output_format: json-lines, records_per_split: 2}
    auto_terminated: [original, failure]
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Split}
  - {from: Split.splits, to: Write}
""",
    "TailFile": """
name: tail
processors:
  Tail: {type: TailFile, properties: {file: /var/log/app.log, rotated: 'app.log.*'}}
  Publish:
    type: PublishTopic
    properties: {topic: logs, message: line}
    auto_terminated: [success, failure]
connections:
  - {from: Tail.success, to: Publish}
""",
    "UpdateAttribute": """
name: rename
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Rename:
    type: UpdateAttribute
    properties: {filename: '${filename}.bak', delete: 'file[.].*'}
    auto_terminated: failure
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Rename}
  - {from: Rename.success, to: Write}
""",
    "ValidateRecord": """
name: validate
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Validate:
    type: ValidateRecord
    properties:
      input_format: csv
      output_format: json-lines
      schema: user int not null, page string
    auto_terminated: failure
  Publish:
    type: PublishTopic
    properties: {topic: clicks, message: line}
    auto_terminated: [success, failure]
  Reject: {type: PutFile, properties: {folder: /data/bad}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Validate}
  - {from: Validate.valid, to: Publish}
  - {from: Validate.invalid, to: Reject}
""",
    "Wait": """
name: wait
processors:
  Read: {type: GetFile, properties: {folder: /data/in}}
  Wait:
    type: Wait
    properties: {signal: '${filename}', signals: batches, expires_after: 1 hour}
    auto_terminated: [expired, failure]
  Write: {type: PutFile, properties: {folder: /data/out}, auto_terminated: [success, failure]}
connections:
  - {from: Read.success, to: Wait}
  - {from: Wait.wait, to: Wait}
  - {from: Wait.success, to: Write}
""",
}


@dataclass(frozen=True)
class Trial:
    """A FlowFile that enters the processor of the example, and how many leave by relationship."""

    content: bytes
    sent: Mapping[str, int]
    attributes: Mapping[str, str] = field(default_factory=dict)


_CSV: Final = b"user,page\n1,/\n2,/about\n3,/\n"
RUNS: Final[Mapping[str, Trial]] = {
    "ConvertRecord": Trial(_CSV, {"success": 1}),
    "DetectDuplicate": Trial(b"", {"non-duplicate": 1}, {"X-Id": "7"}),
    "EvaluateJsonPath": Trial(b'{"customer": {"id": 7}, "total": 12.5}', {"matched": 1}),
    "LogAttribute": Trial(b"", {"success": 1}),
    "RouteOnAttribute": Trial(b"", {"large": 1}, {"file.size": "2000000"}),
    "RouteOnContent": Trial(b"10:00 ERROR disk full\n", {"errors": 1}),
    "SplitRecord": Trial(_CSV, {"splits": 2, "original": 1}),
    "UpdateAttribute": Trial(b"", {"success": 1}, {"filename": "a.csv"}),
    "ValidateRecord": Trial(b"user,page\n1,/\nnone,/\n", {"valid": 1, "invalid": 1}),
}
