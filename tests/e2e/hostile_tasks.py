"""Tasks whose agents and tests misbehave, with the end that each of them must come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BASE_IMAGE = "evolve-test/debian:bookworm"
SCORING = "ScoringError"
PRINTED_BYTES = 20_000_000


@dataclass(frozen=True)
class End:
    """What a trial must come to. `told` is part of its exception's message."""

    status: str = "SCORED"
    reward: float | None = 1.0
    exception: str | None = None
    told: str = ""


FAILED_SCORING = End("SCORING_ERROR", None, SCORING)


@dataclass(frozen=True)
class HostileTask:
    """`solve` is the agent (the oracle runs it), `test` the verifier; `ends` by provider where they differ.

    `exit_codes`: the agent's, by provider, where it matters. `is_timeout`: the agent must have been ended
    by its own timeout. `files`: what the trial must have kept, as content or as a size.
    """

    name: str
    solve: str = "true"
    test: str = "echo 1 > /logs/verifier/reward.txt"
    end: End = End()
    ends: Mapping[str, End] = field(default_factory=dict[str, End])
    exit_codes: Mapping[str, int] = field(default_factory=dict[str, int])
    agent_timeout_sec: float = 60.0
    verifier_timeout_sec: float = 60.0
    is_timeout: bool = False
    environment: str = ""
    head: str = ""
    files: Mapping[str, bytes | int] = field(default_factory=dict[str, "bytes | int"])

    def end_on(self, provider: str) -> End:
        return self.ends.get(provider, self.end)

    def tree(self) -> dict[str, str]:
        """The task's directory."""
        toml = f"""\
schema_version = "1.3"
{self.head}
[agent]
timeout_sec = {self.agent_timeout_sec}
[verifier]
timeout_sec = {self.verifier_timeout_sec}
[environment]
network_mode = "no-network"
memory_mb = 256
{self.environment}
"""
        return {
            f"{self.name}/task.toml": toml,
            f"{self.name}/instruction.md": "Misbehave.\n",
            f"{self.name}/environment/Dockerfile": f"FROM {BASE_IMAGE}\nWORKDIR /app\n",
            f"{self.name}/solution/solve.sh": f"#!/bin/bash\n{self.solve}\n",
            f"{self.name}/tests/test.sh": f"#!/bin/bash\n{self.test}\n",
        }


# What an agent goes on writing; the tests give 1 only when nothing is written any more.
_WRITES_ON = "while :; do echo x >> /app/late; sleep 0.05; done"
_NOTHING_IS_WRITTEN = """\
[ -s /app/late ] || exit 1
before=$(wc -c < /app/late); sleep 1; after=$(wc -c < /app/late)
[ "$before" = "$after" ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"""

TASKS = (
    HostileTask(
        "tests-leave-a-process",
        test="sleep 9999 & setsid sleep 9999 & echo 1 > /logs/verifier/reward.txt",
    ),
    HostileTask(
        "agent-ignores-sigterm",
        solve=f"trap '' TERM INT HUP QUIT\n{_WRITES_ON}",
        test=_NOTHING_IS_WRITTEN,
        agent_timeout_sec=2,
        is_timeout=True,
    ),
    HostileTask(
        "agent-escapes-with-setsid",
        solve=f"trap '' TERM\nsetsid setsid bash -c 'trap \"\" TERM HUP; {_WRITES_ON}' &\nsleep 60",
        test=_NOTHING_IS_WRITTEN,
        agent_timeout_sec=2,
        is_timeout=True,
    ),
    HostileTask(
        "agent-forges-a-reward",
        solve="mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        test="echo 0 > /logs/verifier/reward.txt",
        end=End(reward=0.0),
    ),
    HostileTask(
        "agent-forges-and-tests-write-nothing",
        solve="rm -rf /logs/verifier; ln -s /app /logs/verifier; echo '{\"reward\": 1}' > /app/reward.json",
        test="true",
        end=FAILED_SCORING,
    ),
    HostileTask(
        "agent-reads-stdin",
        solve="cat > /app/in; read -r line; [ -s /app/in ] || touch /app/done",
        test="[ -e /app/done ] && echo 1 > /logs/verifier/reward.txt",
    ),
    HostileTask("agent-puts-a-file-where-logs-go", solve="rm -rf /logs; echo mine > /logs"),
    HostileTask("agent-links-logs-elsewhere", solve="rm -rf /logs; ln -s /etc /logs"),
    HostileTask("agent-kills-pid-1", solve="kill -9 1; kill -TERM 1; kill -INT 1; kill -QUIT 1; kill -HUP 1"),
    HostileTask(
        "agent-kills-everything",
        solve="kill -9 -1; sleep 60",
        # Docker's init leaves when what it keeps is killed: that agent has ended its own box.
        ends={"docker": End("INFRASTRUCTURE_ERROR", None, "InfrastructureError", told="is gone")},
    ),
    HostileTask(
        "agent-fills-the-disk",
        solve="dd if=/dev/zero of=/app/fill bs=1M count=150",
        environment="storage_mb = 64",
        # `dd` fails when the box is full. An engine without project quotas cannot limit a container's disk.
        exit_codes={"local": 1, "docker": 0},
    ),
    HostileTask("täsk mit  Leerzeichen ☃"),
    HostileTask(
        "artifact-name-is-not-utf8",
        solve="mkdir -p /logs/artifacts; printf x > \"/logs/artifacts/$(printf 'bad\\377name')\"",
        files={"artifacts/logs/artifacts/bad\\xffname": b"x"},
    ),
    HostileTask("tests-write-nothing", test="exit 0", end=FAILED_SCORING),
    HostileTask("tests-write-nan", test="echo nan > /logs/verifier/reward.txt", end=FAILED_SCORING),
    HostileTask("tests-write-two", test="echo 2 > /logs/verifier/reward.txt", end=FAILED_SCORING),
    HostileTask("tests-exit-1-with-a-reward", test="echo 1 > /logs/verifier/reward.txt; exit 1"),
    HostileTask(
        "tests-outrun-their-timeout",
        test="echo 1 > /logs/verifier/reward.txt; trap '' TERM; sleep 60; sleep 60",
        end=End("SCORING_ERROR", None, SCORING, told="timeout"),
        verifier_timeout_sec=2,
    ),
    HostileTask(
        "both-print-twenty-megabytes",
        solve=f"yes agent | head -c {PRINTED_BYTES}",
        test=f"yes tests | head -c {PRINTED_BYTES}; echo 1 > /logs/verifier/reward.txt",
        files={"verifier/test-stdout.txt": PRINTED_BYTES, "agent/oracle.txt": PRINTED_BYTES},
    ),
)
REFUSED = HostileTask("artifact-climbs-out", head='artifacts = ["../x"]')
SLOW = HostileTask(
    "agent-goes-on-without-its-worker",
    solve="mkdir -p /logs/artifacts; cd /logs/artifacts; echo run >> runs; sleep 5; echo end >> runs",
    files={"artifacts/logs/artifacts/runs": b"run\nend\n"},
)
