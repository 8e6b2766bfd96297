"""What of an agent's box is carried into a verifier's: everything as it was, and nothing that points away."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from activities.artifact_tar import ArtifactTar, is_excluded


class Tree:
    """A tar as a box gives one: of a folder, or of a single file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w")  # noqa: SIM115 - `done` closes it

    def folder(self, name: str, mode: int = 0o755) -> Tree:
        return self._add(name, tarfile.DIRTYPE, mode=mode)

    def file(self, name: str, data: str = "x", mode: int = 0o644) -> Tree:
        return self._add(name, tarfile.REGTYPE, data.encode(), mode=mode)

    def link(self, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Tree:
        return self._add(name, kind, link=target)

    def pipe(self, name: str) -> Tree:
        return self._add(name, tarfile.FIFOTYPE)

    def _add(self, name: str, kind: bytes, data: bytes = b"", *, mode: int = 0o644, link: str = "") -> Tree:
        member = tarfile.TarInfo(name)
        member.type, member.mode, member.size, member.linkname = kind, mode, len(data), link
        member.uid = member.gid = 1000
        self._tar.addfile(member, io.BytesIO(data))
        return self

    def done(self) -> Path:
        self._tar.close()
        return self.path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "part.tar").folder(".")


def carried(
    tmp_path: Path, *parts: tuple[Path, str, tuple[str, ...]]
) -> tuple[dict[str, tarfile.TarInfo], list[str]]:
    """The whole tar's entries by name, and what was left out."""
    whole = ArtifactTar(tmp_path / "whole.tar")
    for part, source, exclude in parts:
        whole.add(part, source, exclude)
    whole.close()
    with tarfile.open(tmp_path / "whole.tar") as tar:
        return {member.name: member for member in tar}, whole.left_out


def test_places_modes_and_empty_folders_stay_and_owners_do_not(tree: Tree, tmp_path: Path) -> None:
    part = tree.file("./run.sh", mode=0o4755).folder("./empty", mode=0o700).file("./a/b.txt").done()
    entries, left_out = carried(tmp_path, (part, "/app/out", ()))
    assert set(entries) == {"app/out", "app/out/run.sh", "app/out/empty", "app/out/a/b.txt"}
    assert (entries["app/out/run.sh"].mode, entries["app/out/empty"].mode) == (0o755, 0o700)
    assert {entry.uid for entry in entries.values()} == {0}
    assert left_out == []


def test_a_file_stands_at_its_source_whatever_the_tar_calls_it(tmp_path: Path) -> None:
    part = Tree(tmp_path / "file.tar").file("report.json", "{}").done()
    entries, _ = carried(tmp_path, (part, "/app/report.json", ()))
    assert list(entries) == ["app/report.json"]


@pytest.mark.parametrize(
    ("target", "is_carried"),
    [
        ("real.txt", True),
        ("../out/real.txt", True),
        ("/app/out/real.txt", True),
        ("nowhere", True),
        ("/tests/expected.json", False),
        ("../../etc/passwd", False),
        # Where this leads depends on where `deep` does.
        ("deep/../../tests/expected.json", False),
    ],
)
def test_a_link_is_carried_only_when_it_leads_to_what_is_carried(
    tree: Tree, tmp_path: Path, target: str, is_carried: bool
) -> None:
    part = tree.file("./real.txt").link("./link", target).done()
    entries, left_out = carried(tmp_path, (part, "/app/out", ()))
    assert ("app/out/link" in entries) is is_carried
    assert bool(left_out) is not is_carried


def test_links_come_last_and_never_in_the_place_of_a_folder(tree: Tree, tmp_path: Path) -> None:
    part = tree.link("./first", "second").file("./second").done()
    other = Tree(tmp_path / "other.tar").folder(".").file("./x").done()
    entries, _ = carried(tmp_path, (part, "/app", ()), (other, "/app/first", ()))
    assert list(entries)[-1] != "app/first"
    assert entries["app/first"].isdir()
    entries, _ = carried(tmp_path, (part, "/app", ()))
    assert list(entries) == ["app", "app/second", "app/first"]


def test_a_further_name_of_a_file_becomes_a_file(tree: Tree, tmp_path: Path) -> None:
    part = tree.file("./a", "data").link("./b", "./a", tarfile.LNKTYPE).done()
    entries, _ = carried(tmp_path, (part, "/app", ()))
    assert entries["app/b"].isreg()
    assert entries["app/b"].size == 4


def test_what_is_the_verifiers_or_no_file_is_left_out_and_told(tree: Tree, tmp_path: Path) -> None:
    part = tree.pipe("./pipe").file("./verifier/reward.txt").file("./agent/log").done()
    entries, left_out = carried(tmp_path, (part, "/logs", ()))
    assert set(entries) == {"logs", "logs/agent/log"}
    assert len(left_out) == 2


@pytest.mark.parametrize("name", ["../up", "a/../../up"])
def test_a_name_that_leads_out_of_its_tree_is_left_out(tree: Tree, tmp_path: Path, name: str) -> None:
    entries, left_out = carried(tmp_path, (tree.file(name).done(), "/app", ()))
    assert list(entries) == ["app"]
    assert left_out


@pytest.mark.parametrize(
    ("name", "pattern", "is_out"),
    [
        ("node_modules", "node_modules", True),
        ("a/node_modules/b/c.js", "node_modules", True),
        ("src/x.pyc", "*.pyc", True),
        ("src/x.py", "*.pyc", False),
        ("build/lib/x", "build/lib", True),
        ("my_build/x", "build", False),
    ],
)
def test_patterns_exclude_as_tar_does(name: str, pattern: str, is_out: bool) -> None:
    assert is_excluded(name, [pattern]) is is_out


def test_of_two_sources_that_overlap_each_entry_comes_once(tree: Tree, tmp_path: Path) -> None:
    part = tree.file("./a/b").done()
    inner = Tree(tmp_path / "inner.tar").folder(".").file("./b").file("./c").done()
    entries, _ = carried(tmp_path, (part, "/app", ("c",)), (inner, "/app/a", ()))
    assert set(entries) == {"app", "app/a/b", "app/a", "app/a/c"}
