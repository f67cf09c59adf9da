"""The examples of the client's page run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "broker"))

from broker_kit import RunningBroker  # noqa: E402
from v2_kit import V2  # noqa: E402

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/client.md").read_text(), re.DOTALL)


def test_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish, handle, take = EXAMPLES
    options = BrokerOptions(folder=str(tmp_path), http_port=0, tcp_port=0)
    with RunningBroker(options) as broker:
        address = f"127.0.0.1:{broker.server.broker.tcp_port}"

        def run(code: str) -> None:
            exec(compile(code.replace("127.0.0.1:4150", address), "client.md", "exec"), {})

        for channel in ("archive", "counts"):
            with V2(broker.server.broker.tcp_port).subscribe("clicks", channel, 0):
                pass
        run(publish)
        # The one example that goes on for ever stops when the messages are there.
        run(
            handle.replace(
                "    print(message.body.decode())",
                "    print(message.body.decode())\n    SEEN.append(message)\n"
                "    if len(SEEN) == 3:\n        ALL.set()",
            )
            .replace("        await consumer.wait_stopped()", "        await ALL.wait()")
            .replace("async def main", "SEEN = []\nALL = asyncio.Event()\n\n\nasync def main")
        )
        assert '{"page": "/b"}' in capsys.readouterr().out
        run(take)
        assert " messages" in capsys.readouterr().out
