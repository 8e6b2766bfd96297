"""The arrows of the house: which room may import which (../shared/design/architecture.md, docs/decisions)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("domain", "workflows", "activities", "gateway", "store", "api", "cli")
MAY_IMPORT = {
    "domain": {"domain"},
    "workflows": {"workflows", "domain", "activities.signatures"},
    "activities": {"activities", "domain", "store"},
    "gateway": {"gateway", "domain", "store"},
    "store": {"store", "domain"},
    "api": {"api", "domain", "store", "workflows.names"},
    "cli": {"cli", "domain"},
}
# Together they put the processes together; everything they import is imported when a command runs.
COMPOSITION = {
    "cli/serve.py",
    "cli/workflow_side.py",
    "cli/store_side.py",
    "cli/money_side.py",
    "cli/reaper_side.py",
    "cli/hosts_side.py",
    "cli/machine_side.py",
}
LIBRARIES_OF_DOMAIN = {"pydantic", "pydantic_core", "pathspec"}
NEVER_IN = {"litellm": set(ROOMS) - {"gateway"}, "sqlmodel": {"workflows", "cli", "domain"}}


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name: str, allowed: set[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    room = relative.split("/")[0]
    if relative in COMPOSITION:
        return
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in ROOMS:
            assert is_within(name, MAY_IMPORT[room]), f"{relative} imports {name}"
        if room == "domain" and top not in ROOMS:
            known = top in sys.stdlib_module_names or top in LIBRARIES_OF_DOMAIN
            assert known, f"{relative} imports {name}"
        assert room not in NEVER_IN.get(top, set()), f"{relative} imports {name}"


def test_importing_workflows_loads_no_side_effects() -> None:
    code = (
        "import sys, workflows.job, workflows.trial, workflows.dataset_import\n"
        "bad = {'litellm', 'fastapi', 'sqlmodel', 'sqlalchemy', 'e2b', 'daytona', 'modal', 'aiodocker'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() == "[]"


def test_the_command_starts_without_the_server() -> None:
    code = (
        "import sys, cli.main\n"
        "bad = {'temporalio', 'fastapi', 'sqlmodel', 'aiodocker', 'litellm', 'uvicorn'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() == "[]"
