"""kimi: what it writes and its command."""

from __future__ import annotations

import json

from activities.harnesses.kimi import KimiHarness
from tests.activities.harness_runs import KEY, context_of, written_by

LONG = "Ä" * 60_000
SERVERS = """
[[environment.mcp_servers]]
name = "notes"
transport = "stdio"
command = "notes-server"

[[environment.mcp_servers]]
name = "docs"
url = "http://docs.invalid/sse"

[[environment.mcp_servers]]
name = "search"
transport = "streamable-http"
url = "http://search.invalid/mcp"
"""


def test_everything_but_the_instruction_comes_by_the_environment() -> None:
    launch = KimiHarness().launch(context_of("kimi", model="kimi-k3", effort="max", instruction="-x do it"))
    assert launch.argv == (
        "/opt/evolve/bin/kimi",
        "--output-format",
        "stream-json",
        "--prompt=-x do it",
    )
    assert launch.env == {
        "HOME": "/root",
        "KIMI_MODEL_PROVIDER_TYPE": "kimi",
        "KIMI_MODEL_NAME": "kimi-k3",
        "KIMI_MODEL_BASE_URL": "http://gateway.invalid:1/v1",
        "KIMI_MODEL_API_KEY": KEY,
        "KIMI_MODEL_MAX_OUTPUT_SIZE": "65536",
        "KIMI_MODEL_THINKING_EFFORT": "max",
        "KIMI_LOOP_MAX_ATTEMPTS_PER_STEP": "10",
        "KIMI_DISABLE_TELEMETRY": "1",
        "KIMI_CODE_NO_AUTO_UPDATE": "1",
    }


def test_thinking_is_what_it_does_without_an_effort() -> None:
    assert "KIMI_MODEL_THINKING_EFFORT" not in KimiHarness().launch(context_of("kimi", effort="thinking")).env


async def test_an_instruction_that_no_argument_can_hold_is_put_into_a_file() -> None:
    context = context_of("kimi", instruction=LONG)
    box = await written_by(KimiHarness(), context)
    assert box.files == {"/root/.kimi-code/instruction.md": LONG}
    prompt = KimiHarness().launch(context).argv[-1]
    assert prompt == "--prompt=Read the file /root/.kimi-code/instruction.md to its end, and do what it asks."


async def test_a_servers_transport_is_told_by_name() -> None:
    box = await written_by(KimiHarness(), context_of("kimi", toml=SERVERS))
    assert json.loads(box.files["/root/.kimi-code/mcp.json"]) == {
        "mcpServers": {
            "notes": {"transport": "stdio", "command": "notes-server", "args": []},
            "docs": {"transport": "sse", "url": "http://docs.invalid/sse"},
            "search": {"transport": "http", "url": "http://search.invalid/mcp"},
        }
    }
