"""The task content digest of contract 6.7, against an independent reading of a real directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.digests import content_paths, file_digest, task_content_digest
from domain.errors import TaskError


def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {path: file_digest(data) for path, data in files.items()}


def test_a_file_digest_is_plain_sha256() -> None:
    assert file_digest(b"abc") == "sha256:" + hashlib.sha256(b"abc").hexdigest()


def test_the_digest_is_paths_and_hashes_in_order() -> None:
    files = {
        "tests/test.sh": b"exit 0\n",
        "task.toml": b"",
        "instruction.md": b"do\n",
        "environment/é x": b"1",
    }
    by_hand = hashlib.sha256()
    for path in ("environment/é x", "instruction.md", "task.toml", "tests/test.sh"):
        by_hand.update(path.encode() + b"\x00" + hashlib.sha256(files[path]).hexdigest().encode() + b"\n")
    assert task_content_digest(digests(files), None) == f"sha256:{by_hand.hexdigest()}"


def test_a_known_value_stays() -> None:
    """Computed once by Harbor 0.26's own packager over the same three files."""
    files = {"task.toml": b"", "instruction.md": b"x\n", "environment/Dockerfile": b"FROM scratch\n"}
    assert (
        task_content_digest(digests(files), None)
        == "sha256:8cfba3db72b9d38105f590343833deea87cf5e8b9bc874838c34f8e82e13d914"
    )


def test_only_content_is_covered() -> None:
    paths = [
        "task.toml",
        "README.md",
        "trajectory.json",
        "LICENSE",
        "pre_artifacts.sh",
        ".gitignore",
        "docs/a",
        "steps/a/instruction.md",
        "solution/solve.sh",
        "solution/.hidden",
        "solution/._solve.sh",
        "._x/tests/a",
        "tests/._d/a",
        "tests/._",
        "tests/__pycache__/a.txt",
        "tests/a.pyc",
        "environment/.DS_Store",
        "environment/x.swp",
        "environment/x~",
    ]
    assert content_paths(paths, None) == [
        "README.md",
        "solution/.hidden",
        "solution/solve.sh",
        "steps/a/instruction.md",
        "task.toml",
        "tests/._",
        "trajectory.json",
    ]


def test_a_gitignore_replaces_the_default_patterns() -> None:
    paths = ["tests/a.pyc", "tests/b.log", "tests/keep.log", "environment/c.log"]
    assert content_paths(paths, "*.log\n!keep.log\n") == ["tests/a.pyc", "tests/keep.log"]
    assert content_paths(paths, "") == sorted(paths)


def test_a_pattern_that_cannot_be_read_is_named() -> None:
    with pytest.raises(TaskError, match=r"^\.gitignore: "):
        content_paths(["task.toml"], "!\n")


@given(st.permutations(["task.toml", "tests/a", "tests/b/c", "tests/b.c", "environment/Z", "README.md"]))
def test_the_order_of_files_is_irrelevant(order: list[str]) -> None:
    files = digests({path: path.encode() for path in order})
    assert task_content_digest(files, None) == task_content_digest(dict(sorted(files.items())), None)


def test_the_published_recipe_gives_the_same_for_a_directory(tmp_path: Path) -> None:
    for name in ("task.toml", "notes.txt", "tests/b", "tests/B", "tests/b.pyc", "solution/x/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    outer = hashlib.sha256()
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        relative = path.relative_to(tmp_path).as_posix()
        if relative not in ("notes.txt", "tests/b.pyc"):
            outer.update(f"{relative}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    found = {
        path.relative_to(tmp_path).as_posix(): file_digest(path.read_bytes())
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert task_content_digest(found, None) == f"sha256:{outer.hexdigest()}"
