"""Options: precedence, names, and errors that name their place."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.errors import InvalidRequest
from penstock.services.options import resolution, table
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.roles import broker
from penstock.services.roles.runtime import options_line
from penstock.storage.secrets.secret_sources import Secrets
from penstock.storage.sqlite_urls import sqlite_path


def test_defaults_are_the_documented_ones() -> None:
    options = resolution.resolve({}, {})
    assert str(options.http) == "127.0.0.1:8888"
    assert str(options.broker_http_address) == "127.0.0.1:4151"
    assert str(options.broker_tcp_address) == "127.0.0.1:4150"
    assert options.spark_master == "local[*]"


def test_command_line_beats_variables_beat_file_beats_defaults(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        'http = "127.0.0.1:1"\nbroker-http = "127.0.0.1:1"\n'
        'spark-memory = "1g"\nworker-capacity = 7'
    )
    environment = {"PENSTOCK_HTTP": "127.0.0.1:2", "PENSTOCK_BROKER_HTTP": "127.0.0.1:2"}
    options = resolution.resolve({"data_dir": str(tmp_path), "http": "3"}, environment)
    assert options.http == HostPort("127.0.0.1", 3)
    assert options.broker_http == HostPort("127.0.0.1", 2)
    assert options.spark_memory == "1g"
    assert options.worker_capacity == 7
    assert options.deep_storage_address == str(tmp_path / "segments")


def test_the_default_metadata_url_names_a_file_in_the_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x%20y%41#ü"
    assert sqlite_path(PenstockOptions(data_dir=folder).metadata_address) == str(
        folder / "metadata.db"
    )
    given = "sqlite:////a%20b/m.db"
    assert PenstockOptions(data_dir=folder, metadata_url=given).metadata_address == given


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("file:///a%20b/%2541", "/a b/%41"),
        ("/a%20b", "/a%20b"),
        ("s3://bucket/a%20b", "s3://bucket/a%20b"),
    ],
)
def test_a_file_url_of_the_log_store_is_decoded(given: str, address: str) -> None:
    assert PenstockOptions(task_logs=given).task_logs_address == address


def test_the_data_folder_of_a_variable_holds_the_file(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('token = "s"')
    assert resolution.resolve({}, {"PENSTOCK_DATA_DIR": str(tmp_path)}).token == "s"


def test_a_named_file_is_read_instead(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('token = "a"')
    other = tmp_path / "other.toml"
    other.write_text('token = "b"')
    assert resolution.resolve({"data_dir": str(tmp_path)}, {}, other).token == "b"
    environment = {"PENSTOCK_CONFIG": str(other)}
    assert resolution.resolve({"data_dir": str(tmp_path)}, environment).token == "b"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        resolution.resolve({}, {}, tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('htp = "1"', r"penstock\.toml: htp: .*did you mean http\?"),
        ('broker_http = "1"', r"broker_http: .*did you mean broker-http\?"),
        ('http = "nowhere"', r"penstock\.toml: http: invalid address 'nowhere'"),
        ("http = true", "http: "),
        ('spark-java-options = "-jar x"', "spark-java-options: invalid JVM option '-jar'"),
        (
            'spark-java-options = "-Da=\'b"',
            "spark-java-options: invalid list of JVM options .*: No closing",
        ),
        ('spark-memory = "2 tons"', "spark-memory: invalid memory size '2 tons'"),
        ("worker-capacity = 0", "worker-capacity: 0 is not a whole number"),
        ("worker-capacity = true", "worker-capacity: "),
        ('token = ""', "token: '' is not a text"),
        ('topic-retention = "a week"', "topic-retention: 'a week' is not a duration"),
        ("topic-retention = 7", "topic-retention: 7 is not a text"),
        ('topic-retention-size = "20"', "topic-retention-size: invalid size '20'; write"),
        ("http = ", "is not valid TOML"),
    ],
)
def test_mistakes_in_the_file_are_told_with_their_place(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "penstock.toml").write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        resolution.resolve({"data_dir": str(tmp_path)}, {})


def test_mistakes_in_variables_and_on_the_command_line() -> None:
    with pytest.raises(InvalidRequest, match=r"PENSTOCK_HTTP: invalid address '1:x'"):
        resolution.resolve({}, {"PENSTOCK_HTTP": "1:x"})
    with pytest.raises(
        InvalidRequest, match=r"PENSTOCK_DATADIR: .*did you mean PENSTOCK_DATA_DIR\?"
    ):
        resolution.resolve({}, {"PENSTOCK_DATADIR": "x"})
    with pytest.raises(InvalidRequest, match=r"--worker-capacity: 'many' is not a whole number"):
        resolution.resolve({"worker_capacity": "many"}, {})


def test_variables_of_others_are_left_alone() -> None:
    environment = {"PENSTOCK_SERVICE_HOST": "10.0.0.1", "PENSTOCK_PORT": "tcp://10.0.0.1:80"}
    assert resolution.resolve({}, environment) == PenstockOptions()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8888", "127.0.0.1", 8888),
        ("8888", "127.0.0.1", 8888),
        (":0", "127.0.0.1", 0),
        ("[::1]:80", "::1", 80),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = HostPort.parse(text)
    assert (address.host, address.port) == (host, port)
    assert HostPort.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", ":", "host", "h:65536", "h:-1", "::1:80", "[::1:80", "h:8_0"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(InvalidRequest):
        HostPort.parse(text)


def test_children_read_what_was_written() -> None:
    given = {"http": "127.0.0.1:0", "worker_capacity": "9", "topic_retention": "7d"}
    options = resolution.resolve(given, {"PENSTOCK_TOKEN": "s"})
    assert resolution.from_json(resolution.to_json(options)) == options


def test_retention_reaches_the_broker_in_its_units(tmp_path: Path) -> None:
    def broker_options(given: dict[str, object]) -> BrokerOptions:
        return broker.options_of(resolution.resolve({"data_dir": str(tmp_path), **given}, {}))

    assert broker_options({}).retention_ms is None
    assert broker_options({}).retention_bytes is None
    assert broker_options({"topic_retention": "36h"}).retention_ms == 36 * 3_600_000
    assert broker_options({"topic_retention_size": "20G"}).retention_bytes == 20 << 30
    assert broker_options({"broker_http": "127.0.0.1:7"}).http_port == 7


def test_every_option_has_help_and_three_names() -> None:
    for entry in table.option_entries():
        assert entry.help
        assert entry.flag == f"--{entry.key}"
        assert entry.variable == "PENSTOCK_" + entry.key.upper().replace("-", "_")


def test_what_nsqs_clients_may_reaches_the_broker(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(
        """
        broker-https-port = 4152
        broker-tcp-socket = "/run/nsq.sock"
        broker-tcp-socket-mode = "660"
        tls-cert = "cert.pem"
        tls-required = true
        tls-client-auth-policy = "require-verify"
        tls-min-version = "tls1.3"
        auth-http-addresses = ["auth.example:4181", "https://auth.example/auth"]
        auth-http-request-method = "post"
        broadcast-address = "nsq.example"
        max-channel-consumers = 3
        max-rdy-count = 7
        msg-timeout = "2m"
        """
    )
    options = resolution.resolve(
        {"data_dir": str(tmp_path)}, {"PENSTOCK_LOOKUPD_TCP_ADDRESSES": "a:4160, b:4160"}
    )
    assert resolution.from_json(resolution.to_json(options)) == options
    told = broker.options_of(options)
    assert (told.https_port, told.tcp_socket, told.tcp_socket_mode) == (
        4152,
        "/run/nsq.sock",
        0o660,
    )
    assert told.tls.certificate == "cert.pem"
    assert told.tls.requirement == "true"
    assert told.tls.min_version == "tls1.3"
    assert told.auth.addresses == ("auth.example:4181", "https://auth.example/auth")
    assert told.auth.method == "post"
    assert told.lookup.tcp_addresses == ("a:4160", "b:4160")
    assert told.lookup.broadcast_address == "nsq.example"
    assert told.max_channel_consumers == 3
    assert told.clients.max_ready_count == 7
    assert told.clients.message_timeout_ms == 120_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tls-required", "yes"),
        ("tls-min-version", "tls1.0"),
        ("broker-tcp-socket-mode", "689"),
        ("broker-https-port", "65536"),
        ("max-rdy-count", "0"),
        ("auth-http-addresses", "a,,b"),
        ("msg-timeout", "soon"),
    ],
)
def test_what_nsqs_clients_may_is_checked(name: str, value: str) -> None:
    field = name.replace("-", "_")
    with pytest.raises(InvalidRequest, match=f"--{name}"):
        resolution.resolve({field: value}, {})


def test_every_option_of_the_list_is_one_of_up_and_of_server() -> None:
    from typer.testing import CliRunner

    from penstock.services.cli.entry import app

    def flags(command: str) -> set[str]:
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        return set(re.findall(r"^ +(--[a-z-]+)", shown, re.MULTILINE))

    every = {entry.flag for entry in table.option_entries() if not entry.is_secret}
    assert every <= flags("up")
    assert every - {
        "--spark-master",
        "--spark-secret-file",
        "--spark-memory",
        "--spark-java-options",
        "--query-memory",
    } <= flags("server")


def test_the_token_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" a secret \n")
    line = {"data_dir": str(tmp_path)}
    named = {"PENSTOCK_TOKEN_FILE": str(file)}
    assert resolution.resolve({**line, "token_file": str(file)}, {}).token == "a secret"
    assert resolution.resolve(line, named).token == "a secret"
    # The place that comes first decides, whichever of the two it has.
    (tmp_path / "penstock.toml").write_text('token = "t"')
    assert resolution.resolve(line, {}).token == "t"
    assert resolution.resolve(line, named).token == "a secret"
    (tmp_path / "penstock.toml").write_text(f'token-file = "{file}"')
    assert resolution.resolve(line, {}).token == "a secret"
    assert resolution.resolve(line, {"PENSTOCK_TOKEN": "v"}).token == "v"
    # Children get the secret, not the file.
    assert (
        resolution.from_json(resolution.to_json(resolution.resolve(line, {}))).token == "a secret"
    )
    with pytest.raises(InvalidRequest, match="exclude each other"):
        resolution.resolve(line, {**named, "PENSTOCK_TOKEN": "v"})


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two\nlines", b"\xff\xfe", b"a" * 5_000, b"a\0b"]
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"token-file: .* does not hold a secret"):
        resolution.resolve({"token_file": str(file)}, {})
    with pytest.raises(InvalidRequest, match=r"token-file: .* cannot be read"):
        resolution.resolve({"token_file": str(tmp_path / "absent")}, {})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("token", "s"),
        ("emitter_auth", "user:password"),
        ("zookeeper_auth", "user:password"),
        ("metadata_url", "postgresql+psycopg://user:password@db.example/penstock"),
        ("metadata_url", "postgresql+psycopg://db.example/penstock?password=x"),
        ("spark_connect", "sc://spark.example:15002/;token=x"),
        ("query_connect", "sc://spark.example:15002/;use_ssl=true;token=x"),
        ("deep_storage", "s3://key:secret@bucket/segments"),
        ("emitter_url", "https://user:password@collector.example/"),
        ("auth_http_addresses", "one.example:80,http://user:password@two.example"),
    ],
)
def test_secrets_are_refused_on_the_command_line(option: str, value: str, tmp_path: Path) -> None:
    line = {"data_dir": str(tmp_path)}
    with pytest.raises(InvalidRequest, match="every user of this host can read") as refused:
        resolution.resolve({**line, option: value}, {})
    assert "password" not in str(refused.value).replace("penstock.toml", "")
    variable = f"PENSTOCK_{option.upper()}"
    assert getattr(resolution.resolve(line, {variable: value}), option) in {
        value,
        tuple(value.split(",")),
    }


def test_urls_without_secrets_may_stand_on_the_command_line() -> None:
    urls = {
        "metadata_url": "postgresql+psycopg://user@db.example:5432/penstock",
        "spark_connect": "sc://spark.example:15002",
        "deep_storage": "s3://bucket/segments@2",
    }
    options = resolution.resolve(urls, {})
    assert {name: getattr(options, name) for name in urls} == urls


def test_options_with_secrets_keep_their_references_until_a_process_uses_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "penstock.toml").write_text('token = "secret://token"')
    given = {"data_dir": str(tmp_path), "metadata_url": "secret://database"}
    options = resolution.resolve(given, {"PENSTOCK_EMITTER_AUTH": "secret://emitter"})
    assert resolution.from_json(resolution.to_json(options)) == options
    assert "secret://token" in resolution.to_json(options)
    secrets = Secrets(tmp_path / "secrets")
    url = "postgresql+psycopg://ann:hush@h/db"
    for name, value in (("token", "hush"), ("database", url), ("emitter", "ann:hush")):
        secrets.store().set(name, value)
    resolution.check_secrets(options, secrets)
    with pytest.raises(InvalidRequest, match="unknown secret 'database'"):
        resolution.check_secrets(options, Secrets(tmp_path))
    used = resolution.with_secrets(options, secrets)
    assert (used.token, used.metadata_url, used.emitter_auth) == ("hush", url, "ann:hush")
    assert resolution.with_secrets(used, Secrets()) is used
    line = options_line(options)
    assert "token=secret://token" in line
    assert "hush" not in line + options_line(used)


@pytest.mark.parametrize(
    "name", [one.name for one in fields(PenstockOptions) if one.metadata["secret"]]
)
def test_no_secret_is_in_the_line_of_options(name: str) -> None:
    assert "hush" not in options_line(replace(PenstockOptions(), **{name: "ann:hush"}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data_dir": "secret://a"}, "--data-dir: this option must not name a secret"),
        ({"deep_storage": "secret://a"}, "must not name a secret, because it is shown"),
        ({"metadata_url": "secret://a/b"}, "--metadata-url: invalid name of a secret"),
        ({"metadata_url": "SECRET://a"}, "in small letters"),
    ],
)
def test_a_reference_in_another_option_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        resolution.resolve(given, {})


@pytest.mark.parametrize(
    ("field", "value"), [("spark_connect", "hush"), ("token", "secret://hush"), ("token", " ")]
)
def test_a_secret_that_an_option_does_not_accept_is_refused_and_not_shown(
    tmp_path: Path, field: str, value: str
) -> None:
    secrets = Secrets(tmp_path)
    secrets.store().set("a", value)
    options = resolution.resolve({field: "secret://a"}, {})
    with pytest.raises(InvalidRequest, match="secret://a: the secret") as error:
        resolution.with_secrets(options, secrets)
    assert "hush" not in str(error.value)
    with pytest.raises(InvalidRequest, match="unknown secret 'a'"):
        resolution.with_secrets(options, Secrets(tmp_path / "other"))
