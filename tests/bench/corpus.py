"""Tasks for the bench: numbered copies of the examples on the tests' own base image."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.stack_harness import SOURCE

BASE_IMAGE = "evolve-test/debian:bookworm"
EXAMPLES = SOURCE / "examples" / "tasks"


def write_examples(root: Path, count: int, nonce: str, *, is_public: bool = True) -> Path:
    """`count` task directories below `root`; `nonce` makes their images new to every build cache.

    Each image is made different from its first step on: Docker 20.10 was seen to break images whose
    identical steps were built at the same time (no base files in them).

    The examples declare no network. Beside harbor it is left on for both sides, since harbor's docker
    cannot cut it on every kernel.
    """
    examples = sorted(EXAMPLES.iterdir())
    for number in range(count):
        example = examples[number % len(examples)]
        task = root / f"{example.name}-{number:02}"
        shutil.copytree(example, task, ignore=shutil.ignore_patterns("__pycache__"))
        dockerfile = task / "environment" / "Dockerfile"
        lines = [
            f"FROM {BASE_IMAGE}\nENV EVOLVE_BENCH={nonce}-{number}" if line.startswith("FROM ") else line
            for line in dockerfile.read_text().splitlines()
        ]
        dockerfile.write_text("\n".join(lines) + "\n")
        config = task / "task.toml"
        text = config.read_text().replace(f"/{example.name}", f"/{task.name}", 1)
        if is_public:
            text = text.replace('network_mode = "no-network"', 'network_mode = "public"')
        config.write_text(text)
    return root
