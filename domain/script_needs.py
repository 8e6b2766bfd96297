"""Verifier scripts that need a package index, where their box will have none (contract 6.8).

Only what is sure is refused: a script's PEP 723 header names packages, the tests call `uv run` or `uvx`,
and the box reaches nothing. Anything else may find its packages in the image.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from domain.errors import TaskError
from domain.judges import judge_families
from domain.tasks import Task

__all__ = ["JUDGE_PACKAGES", "refuse_index_needs", "script_packages"]

JUDGE_PACKAGES = frozenset({"rewardkit", "harbor-rewardkit", "litellm"})
"""What a judge's box has without an index."""
# PEP 723's own expression, for the block named `script`.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_RUNS_UV = re.compile(rb"\buv\s+run\b|\buvx\b")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def refuse_index_needs(task: Task, tests: Mapping[str, bytes]) -> None:
    """Raise `TaskError` naming the script. `tests` are the files of its verifiers, by their path."""
    if task.verifier_network.mode != "no-network":
        return
    if not any(_RUNS_UV.search(content) for content in tests.values()):
        return
    given = JUDGE_PACKAGES if judge_families(task.verifier_env) else frozenset[str]()
    for path, content in sorted(tests.items()):
        missing = sorted(script_packages(content.decode(errors="replace")) - given)
        if missing:
            raise TaskError(
                f"{path}: needs {', '.join(missing)} from a package index, which its verifier cannot reach "
                "under no-network: install them in the image",
                code="feature_unsupported",
            )


def script_packages(script: str) -> frozenset[str]:
    """Names of the packages that a script's PEP 723 header depends on, as indexes normalize them."""
    block = _BLOCK.search(script.replace("\r\n", "\n"))
    if block is None:
        return frozenset()
    lines = (line.removeprefix("#").removeprefix(" ") for line in block["content"].splitlines())
    try:
        metadata: dict[str, Any] = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return frozenset()
    declared = metadata.get("dependencies")
    wanted = cast("list[Any]", declared) if isinstance(declared, list) else []
    names = (_PACKAGE.match(each.strip()) for each in wanted if isinstance(each, str))
    return frozenset(re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name)
