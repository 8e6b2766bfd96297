"""A verifier that would need an index it cannot reach is refused before anything is spent."""

from __future__ import annotations

import pytest

from domain.errors import TaskError
from domain.script_needs import refuse_index_needs, script_packages
from domain.tasks import TaskFiles, parse_task

HEADER = (
    '# /// script\n# requires-python = ">=3.12"\n# dependencies = [\n#   "{package}",\n# ]\n# ///\nprint()\n'
)
RUNS = {"tests/test.sh": b"uv run /tests/check.py\n"}
JUDGE = 'verifier.env.ANTHROPIC_API_KEY = "${ANTHROPIC_API_KEY}"\n'
NO_NETWORK = "environment.network_mode = 'no-network'\n"


def refused(toml: str, package: str, runs: dict[str, bytes] = RUNS) -> str | None:
    """What is said of a task whose script needs a package; None when it is accepted."""
    script = {"tests/check.py": HEADER.format(package=package).encode()}
    try:
        refuse_index_needs(parse_task("t", toml, TaskFiles()), {**runs, **script})
    except TaskError as error:
        return f"{error.code}: {error.message}"
    return None


def test_a_header_that_needs_an_index_is_refused_under_no_network_only() -> None:
    told = refused(NO_NETWORK, "pandas>=2") or ""
    assert told.startswith("feature_unsupported: tests/check.py: needs pandas from a package index")
    assert not refused("environment.network_mode = 'public'\n", "pandas>=2")


def test_it_is_the_verifiers_network_that_counts() -> None:
    own = "verifier.environment.network_mode = 'public'\n"
    assert not refused(NO_NETWORK + own, "pandas")
    assert refused("verifier.environment.network_mode = 'no-network'\n", "pandas")


def test_without_uv_nothing_reads_the_header() -> None:
    assert not refused(NO_NETWORK, "pandas", {"tests/test.sh": b"python3 /tests/check.py\n"})
    assert refused(NO_NETWORK, "pandas", {"tests/test.sh": b"uvx --from x y\n"})


def test_a_judge_has_its_own_packages_without_an_index() -> None:
    assert not refused(NO_NETWORK + JUDGE, "harbor_rewardkit==0.2.3")
    assert not refused(NO_NETWORK + JUDGE, "litellm[proxy]>=1.83")
    assert refused(NO_NETWORK + JUDGE, "pandas")
    assert refused(NO_NETWORK, "litellm")


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("print()", set()),
        ("# /// script\n# dependencies = []\n# ///\n", set()),
        ("# /// script\n# dependencies = [\n# ///\n", set()),
        (
            "# /// script\r\n# dependencies = ['A.b_c; python_version>\"3\"', 'x @ file:///x']\r\n# ///\r\n",
            {"a-b-c", "x"},
        ),
        ("# /// script\n# dependencies = ['a']\n", set()),
    ],
)
def test_packages_of_a_header(script: str, packages: set[str]) -> None:
    assert script_packages(script) == packages
