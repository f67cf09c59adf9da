"""Where a role listens that runs without a launcher."""

from __future__ import annotations

import pytest

from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.roles.runtime import own_address


@pytest.mark.parametrize("is_port_given", [True, False])
@pytest.mark.parametrize("name", ["overlord", "worker", "flow", "router", "broker"])
def test_a_role_listens_at_the_port_of_its_command_line(name: str, is_port_given: bool) -> None:
    options = PenstockOptions(
        http=HostPort("10.0.0.1", 8081), broker_http=HostPort("10.0.0.2", 4151)
    )
    # A file has the router's port, which all roles of a host share.
    free = name in {"overlord", "worker", "flow"} and not is_port_given
    expected = HostPort("10.0.0.2", 4151) if name == "broker" else options.http
    found = own_address(name, options, is_port_given=is_port_given)
    assert found == (HostPort("10.0.0.1", 0) if free else expected)
