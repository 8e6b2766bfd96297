"""Tasks for the bench: numbered copies of the examples on the tests' own base image, and a sleeper."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.stack_harness import SOURCE

BASE_IMAGE = "evolve-test/debian:bookworm"
EXAMPLES = SOURCE / "examples" / "tasks"


def write_examples(root: Path, count: int, nonce: str) -> Path:
    """`count` task directories below `root`; `nonce` makes their images new to every build cache."""
    examples = sorted(EXAMPLES.iterdir())
    for number in range(count):
        example = examples[number % len(examples)]
        task = root / f"{example.name}-{number:02}"
        shutil.copytree(example, task)
        dockerfile = task / "environment" / "Dockerfile"
        lines = [
            f"FROM {BASE_IMAGE}\nENV EVOLVE_BENCH={nonce}" if line.startswith("FROM ") else line
            for line in dockerfile.read_text().splitlines()
        ]
        dockerfile.write_text("\n".join(lines) + "\n")
        config = task / "task.toml"
        config.write_text(config.read_text().replace(f"/{example.name}", f"/{task.name}", 1))
    return root


def files_below(root: Path) -> dict[str, str]:
    """Path below `root` → text, as `tests.factories.tar_gz` packs it."""
    return {
        str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()
    }
