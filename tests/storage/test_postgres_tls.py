"""Parameters of TLS in a metadata URL reach the driver."""

from __future__ import annotations

from sqlalchemy import make_url

from penstock.storage.metadata.backends.postgres import make_engine


def test_every_parameter_of_the_url_is_one_of_the_connection() -> None:
    url = make_url(
        "postgresql+psycopg://u:p@db.example/penstock?sslmode=verify-full"
        "&sslrootcert=/etc/ca.pem&sslcert=/etc/c.pem&sslkey=/etc/k.pem"
    )
    engine = make_engine(url, 1_000)
    _, found = engine.dialect.create_connect_args(engine.url)
    assert found["sslmode"] == "verify-full"
    files = [found[name] for name in ("sslrootcert", "sslcert", "sslkey")]
    assert files == ["/etc/ca.pem", "/etc/c.pem", "/etc/k.pem"]
    engine.dispose()
