"""Archives of strangers: each hostile entry is refused by name and leaves nothing; ours are deterministic."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.archives import ArchiveLimits, pack_tree, tree_files, unpack_archive
from domain.errors import ArchiveError

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", **attributes: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return entry(name, type=kind, linkname=target)


def tar_bytes(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[..., Path]:
    """Unpack bytes; on refusal nothing but the archive itself may be left."""

    def run(data: bytes, *, limits: ArchiveLimits | None = None, may_be_wrapped: bool = False) -> Path:
        archive, destination = tmp_path / "a.tar.gz", tmp_path / "out"
        archive.write_bytes(data)
        try:
            unpack_archive(archive, destination, limits=limits, may_be_wrapped=may_be_wrapped)
        finally:
            left = {path.name for path in tmp_path.iterdir()} - {"a.tar.gz", "out"}
            assert not left, "a staging directory was left behind"
        return destination

    return run


def contents(tree: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in tree_files(tree).items()}


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_plain_and_compressed_tars_unpack_alike(
    unpack: Callable[..., Path], compress: Callable[[bytes], bytes]
) -> None:
    tree = unpack(compress(tar_bytes(entry("./a/b.txt", b"one"), entry("c d/é.txt", b"two"))))
    assert contents(tree) == {"a/b.txt": b"one", "c d/é.txt": b"two"}


def test_modes_are_reduced_to_0755_and_0644_whatever_the_umask(unpack: Callable[..., Path]) -> None:
    before = os.umask(0o077)
    try:
        tree = unpack(tar_bytes(entry("d/x.sh", b"x", mode=0o4711), entry("d/y", b"y", mode=0o666)))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tree, tree / "d", *(tree / "d").iterdir())}
    assert modes == {"out": 0o755, "d": 0o755, "x.sh": 0o755, "y": 0o644}


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry("../evil", b"x")], "climbs out"),
        ([entry("a/../../evil", b"x")], "climbs out"),
        ([entry("/etc/evil", b"x")], "absolute path"),
        ([link("out", "/etc")], "out of the archive"),
        ([link("a/out", "../../etc")], "out of the archive"),
        ([link("dir", "real"), entry("dir/evil", b"x")], "'dir' is in the archive twice"),
        ([link("name", "real"), entry("name", b"x")], "'name' is in the archive twice"),
        ([entry("name/x", b"x"), link("name", "real")], "'name' is in the archive twice"),
        ([entry("a", b"x"), link("b", "a", tarfile.LNKTYPE)], "hard link"),
        ([link("b", "/etc/passwd", tarfile.LNKTYPE)], "hard link"),
        ([entry("dev", type=tarfile.CHRTYPE)], "a device"),
        ([entry("dev", type=tarfile.BLKTYPE)], "a device"),
        ([entry("pipe", type=tarfile.FIFOTYPE)], "a fifo"),
        ([entry("odd", type=b"Z")], "unknown kind"),
        ([entry("a", b"1"), entry("a", b"2")], "'a' is in the archive twice"),
        ([entry("a", b"1"), entry("./a", b"2")], "'a' is in the archive twice"),
        ([entry("a", b"1"), entry("a/b", b"2")], "'a' is in the archive twice"),
        ([entry("README", b"1"), entry("readme", b"2")], "differ in case"),
        ([entry("Dir/a", b"1"), entry("dir/b", b"2")], "differ in case"),
        ([entry("caf\u00e9", b"1"), entry("cafe\u0301", b"2")], "differ in case or Unicode form"),
        ([entry("a\nb", b"1")], "control characters"),
        ([entry("x" * 256, b"1")], "longer than 255"),
        ([entry("d/" * 200 + "x", b"1")], "too long or too deep"),
        ([entry("x", b"1", pax_headers={"GNU.sparse.size": "9"})], "sparse"),
    ],
)
def test_a_hostile_entry_is_refused_by_name(
    unpack: Callable[..., Path], tmp_path: Path, entries: list[Entry], told: str
) -> None:
    with pytest.raises(ArchiveError, match=told):
        unpack(gzip.compress(tar_bytes(entry("first", b"kept nowhere"), *entries)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_of_both_formats_are_read_and_still_checked(
    unpack: Callable[..., Path], format: int
) -> None:
    long = "/".join(["part" * 20] * 4) + "/file"
    tree = unpack(tar_bytes(entry(long, b"x"), format=format))
    assert contents(tree) == {long: b"x"}


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_long_name_may_not_climb_out(unpack: Callable[..., Path], format: int) -> None:
    with pytest.raises(ArchiveError, match="climbs out"):
        unpack(tar_bytes(entry("a/" * 80 + "../" * 90 + "evil", b"x"), format=format))


def test_a_name_that_is_not_utf8_is_refused(unpack: Callable[..., Path]) -> None:
    with pytest.raises(ArchiveError, match="not UTF-8"):
        unpack(tar_bytes(entry("b\udce9d", b"x"), format=tarfile.USTAR_FORMAT))


def test_links_inside_the_tree_are_dropped_and_reported(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_bytes(entry("d/a", b"x"), link("d/b", "a"), link("c", "d/a")))
    unpacked = unpack_archive(archive, tmp_path / "out")
    assert (unpacked.paths, unpacked.dropped_links, unpacked.total_bytes) == (("d/a",), ("c", "d/b"), 1)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["a", "d"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (ArchiveLimits(max_unpacked_bytes=100_000), "more than 100000 bytes"),
        (ArchiveLimits(ratio_free_bytes=100_000), "200 times its size"),
        (ArchiveLimits(max_file_bytes=1000), "'zeros' is larger than 1000 bytes"),
        (ArchiveLimits(max_entries=2), "more than 2 entries"),
    ],
)
def test_a_bomb_stops_at_its_ceiling(unpack: Callable[..., Path], limits: ArchiveLimits, told: str) -> None:
    small = [entry(f"n{number}") for number in range(3)] if limits.max_entries == 2 else []
    with pytest.raises(ArchiveError, match=told):
        unpack(gzip.compress(tar_bytes(*small, entry("zeros", bytes(2_000_000)))), limits=limits)


def test_an_extension_header_cannot_fill_the_memory(unpack: Callable[..., Path]) -> None:
    with pytest.raises(ArchiveError, match="extension header is larger"):
        unpack(gzip.compress(tar_bytes(entry("x", b"1", pax_headers={"comment": "z" * 1_000_000}))))


def test_bytes_after_the_end_are_refused(unpack: Callable[..., Path]) -> None:
    data = tar_bytes(entry("a", b"x"))
    for spoiled in (data + b"junk", gzip.compress(data) + b"junk", gzip.compress(data + b"junk")):
        with pytest.raises(ArchiveError, match=r"after the end|damaged"):
            unpack(spoiled)


def test_an_archive_cut_anywhere_is_refused(unpack: Callable[..., Path]) -> None:
    data = tar_bytes(entry("a", b"x" * 3000), entry("b" * 150, b"y"))
    packed = gzip.compress(data)
    for length in range(0, len(data.rstrip(b"\0")) + 256, 256):
        with pytest.raises(ArchiveError):
            unpack(data[:length])
    for length in range(0, len(packed), 7):
        with pytest.raises(ArchiveError):
            unpack(packed[:length])


def test_a_damaged_header_is_not_taken_for_the_end(unpack: Callable[..., Path]) -> None:
    data = bytearray(tar_bytes(entry("a", b"x"), entry("b", b"y"), format=tarfile.USTAR_FORMAT))
    data[1024] ^= 0xFF
    with pytest.raises(ArchiveError, match="damaged at byte 1024"):
        unpack(bytes(data))


def test_what_is_no_archive_is_refused(unpack: Callable[..., Path]) -> None:
    for data in (b"", b"PK\x03\x04" + bytes(2000), b"\x1f\x8b", b"hello"):
        with pytest.raises(ArchiveError):
            unpack(data)


def test_one_wrapping_directory_is_left_out_when_asked(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(
        tar_bytes(entry("repo-1.0/", type=tarfile.DIRTYPE), entry("repo-1.0/t/task.toml", b"x"))
    )
    unwrapped = unpack_archive(archive, tmp_path / "out", may_be_wrapped=True)
    assert (unwrapped.paths, unwrapped.top_dir) == (("t/task.toml",), "repo-1.0")
    kept = unpack_archive(archive, tmp_path / "kept")
    assert (kept.paths, kept.top_dir) == (("repo-1.0/t/task.toml",), None)


def test_two_top_directories_are_no_wrapping(unpack: Callable[..., Path]) -> None:
    tree = unpack(tar_bytes(entry("a/x", b"1"), entry("b/x", b"2")), may_be_wrapped=True)
    assert contents(tree) == {"a/x": b"1", "b/x": b"2"}


def test_an_existing_destination_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "a.tar").write_bytes(tar_bytes(entry("a", b"x")))
    with pytest.raises(FileExistsError):
        unpack_archive(tmp_path / "a.tar", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_same_tree_gives_the_same_archive(tmp_path: Path) -> None:
    packed = []
    for name in ("one", "two"):
        tree = tmp_path / name
        (tree / "z").mkdir(parents=True)
        for path in ("z/b", "a", "z/é " + "x" * 120) if name == "one" else ("z/é " + "x" * 120, "a", "z/b"):
            (tree / path).write_text(path)
        (tree / "a").chmod(0o700)
        (tree / "link").symlink_to("a")
        os.utime(tree / "a", (len(packed) * 1000, len(packed) * 1000))
        packed.append(pack_tree(tree, tmp_path / f"{name}.tar.gz"))
    assert packed[0] == packed[1]
    data = (tmp_path / "one.tar.gz").read_bytes()
    assert (packed[0].sha256, packed[0].length) == (hashlib.sha256(data).hexdigest(), len(data))


def test_what_we_pack_unpacks_to_the_same(tmp_path: Path) -> None:
    source = tmp_path / "run.sh"
    source.write_bytes(b"#!/bin/sh\n")
    source.chmod(0o755)
    pack_tree({"job/run.sh": source, "job/config.json": b"{}"}, tmp_path / "a.tar.gz")
    unpack_archive(tmp_path / "a.tar.gz", tmp_path / "out")
    assert contents(tmp_path / "out") == {"job/run.sh": b"#!/bin/sh\n", "job/config.json": b"{}"}
    assert os.access(tmp_path / "out/job/run.sh", os.X_OK)


def test_a_failed_pack_leaves_nothing_and_keeps_the_old_archive(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        pack_tree({"a": b"x", "b": tmp_path / "absent"}, archive)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
    assert archive.read_bytes() == b"old"
