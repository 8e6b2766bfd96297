"""Archives: packed alike everywhere, sent in the contract's order, kept only when they are whole."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from cli import transfers
from cli.client import Client
from cli.credentials import Credentials
from cli.errors import BrokenTransfer, CliError, Refused
from cli.packing import pack_directory, packable_files, unpack_archive
from cli.transfers import ResumableUpload, Upload, download_archive
from tests.cli.fake_api import KEY, Answer, FakeApi, archive, refusal


def packed(directory: Path) -> bytes:
    target = io.BytesIO()
    pack_directory(directory, target)
    return target.getvalue()


def corpus(root: Path) -> Path:
    """A directory with everything that packing must think about."""
    for name in ("b.txt", "a/x.sh", ".hidden", "ä/ö ü.txt", ".git/config", "a/.venv/x", "a/.DS_Store"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "a/x.sh").chmod(0o700)
    (root / "b.txt").chmod(0o600)
    (root / "link").symlink_to("b.txt")
    (root / "a/dirlink").symlink_to("..")
    (root / "empty").mkdir()
    return root


def test_a_package_holds_regular_files_sorted_and_nothing_skipped(tmp_path: Path) -> None:
    names = [".hidden", "a/x.sh", "b.txt", "ä/ö ü.txt"]
    assert packable_files(corpus(tmp_path)) == names
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path))) as tar:
        entries = tar.getmembers()
    assert [entry.name for entry in entries] == names
    assert [entry.mode for entry in entries] == [0o644, 0o755, 0o644, 0o644]
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {
        (0, 0, 0, "", "")
    }


def test_equal_content_makes_equal_bytes(tmp_path: Path) -> None:
    first, second = corpus(tmp_path / "one"), corpus(tmp_path / "two")
    os.utime(second / "b.txt", (1, 1))
    assert packed(first) == packed(second)
    assert packed(first)[4:8] == bytes(4)


def test_a_publish_sends_metadata_before_the_archive(api: FakeApi, tmp_path: Path) -> None:
    content = gzip.compress(b"x" * 1000, mtime=0)
    api.imports = {"import-1": [{"id": "import-1"}]}
    answer = transfers.send_archive(client(api), upload(content), lambda sent, total: None)
    (request,) = api.asked("POST", "/api/datasets/publish")
    assert answer == {"id": "import-1"}
    parts = [
        part.split(b"\r\n\r\n", 1) for part in request.body.split(b"--" + boundary(request.headers))[1:-1]
    ]
    assert [head.strip() for head, _ in parts] == [
        b'Content-Disposition: form-data; name="name"',
        b'Content-Disposition: form-data; name="version"',
        b'Content-Disposition: form-data; name="archive"; filename="corpus.tar.gz"\r\n'
        b"Content-Type: application/gzip",
    ]
    assert parts[2][1].removesuffix(b"\r\n") == content
    assert int(request.headers["content-length"]) == len(request.body)


def boundary(headers: dict[str, str]) -> bytes:
    return headers["content-type"].split("boundary=")[1].encode()


def client(api: FakeApi) -> Client:
    return Client(Credentials(api.url, KEY))


def upload(content: bytes) -> Upload:
    fields = {"name": "examples", "version": "1", "org": None}
    return Upload("/api/datasets/publish", fields, "corpus.tar.gz", io.BytesIO(content), len(content))


class Resumed:
    """A resumable upload of 25 bytes in chunks of 10; waits are kept instead of slept."""

    def __init__(self, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfers, "CHUNK_BYTES", 10)
        api.imports = {"import-1": [{"id": "import-1", "status": "QUEUED"}]}
        self.content = b"abcdefghijklmnopqrstuvwxy"
        self.waits: list[float] = []
        self.steps: list[int] = []
        self.upload = ResumableUpload(
            client(api),
            upload(self.content),
            lambda sent, total: self.steps.append(sent),
            self.waits.append,
        )


@pytest.fixture
def resumed(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Resumed:
    return Resumed(api, monkeypatch)


SESSION = "/api/datasets/publish/uploads/up-1"


def test_an_upload_goes_chunk_by_chunk(api: FakeApi, resumed: Resumed) -> None:
    assert resumed.upload.send() == {"id": "import-1", "status": "QUEUED"}
    assert api.upload == resumed.content
    assert resumed.steps == [10, 20, 25]
    opened = api.asked("POST", "/api/datasets/publish/uploads")[0].json
    assert opened == {
        "size": 25,
        "sha256": hashlib.sha256(resumed.content).hexdigest(),
        "name": "examples",
        "version": "1",
    }
    chunk = api.asked("PATCH", SESSION)[0]
    assert chunk.headers["content-type"] == "application/offset+octet-stream"
    digest = base64.b64encode(hashlib.sha256(resumed.content[:10]).digest()).decode()
    assert chunk.headers["upload-checksum"] == f"sha256 {digest}"
    assert api.asked("POST", f"{SESSION}/complete")[0].body == b""


def test_a_lost_answer_is_probed_and_the_upload_goes_on(api: FakeApi, resumed: Resumed) -> None:
    api.script("PATCH", SESSION, Answer(cut=True))
    api.script("POST", f"{SESSION}/complete", Answer(cut=True))
    resumed.upload.send()
    assert api.upload == resumed.content
    assert resumed.waits == [0.5, 0.5]


def test_a_stale_offset_is_asked_for_again(api: FakeApi, resumed: Resumed) -> None:
    api.script("PATCH", SESSION, refusal(409, "upload_offset_mismatch", "Stale."))
    resumed.upload.send()
    assert api.upload == resumed.content


def test_a_stated_wait_is_waited_for(api: FakeApi, resumed: Resumed) -> None:
    api.script("PATCH", SESSION, refusal(429, "too_many_concurrent_upload_chunks", "Wait.", retryAfterSec=7))
    resumed.upload.send()
    assert resumed.waits == [7.0]


def test_an_upload_gives_up_at_the_fourth_stumble(api: FakeApi, resumed: Resumed) -> None:
    api.script("PATCH", SESSION, *[refusal(409, "upload_offset_mismatch", "Stale.")] * 4)
    with pytest.raises(Refused, match="Stale"):
        resumed.upload.send()


def test_a_chunk_that_is_refused_is_fatal(api: FakeApi, resumed: Resumed) -> None:
    api.script("PATCH", SESSION, refusal(400, "upload_chunk_digest_mismatch", "Other bytes."))
    with pytest.raises(Refused, match="Other bytes"):
        resumed.upload.send()
    assert len(api.asked("PATCH", SESSION)) == 1


def test_an_upload_that_does_not_advance_ends(api: FakeApi, resumed: Resumed) -> None:
    api.script("PATCH", SESSION, Answer(204, b"", {"Upload-Offset": "0"}))
    with pytest.raises(BrokenTransfer, match="advance"):
        resumed.upload.send()


def test_a_download_is_kept_when_length_and_digest_hold(api: FakeApi, tmp_path: Path) -> None:
    api.archives = {"a": archive(b"content")}
    download_archive(client(api), "/api/jobs/a/download", tmp_path / "x.tar.gz")
    assert (tmp_path / "x.tar.gz").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar.gz"]


@pytest.mark.parametrize(
    "answer",
    [
        archive(b"content", digest="0" * 64),
        Answer(200, b"short", {"Content-Length": "50", "Connection": "close"}),
    ],
    ids=["digest", "length"],
)
def test_a_damaged_download_leaves_nothing(api: FakeApi, tmp_path: Path, answer: Answer) -> None:
    api.archives = {"a": answer}
    with pytest.raises(CliError):
        download_archive(client(api), "/api/jobs/a/download", tmp_path / "x.tar.gz")
    assert list(tmp_path.iterdir()) == []


def make_tar(*entries: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(mode="w:gz", fileobj=target) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                tar.addfile(info, io.BytesIO(entry[1]))
    return target.getvalue()


def unpacked(tmp_path: Path, content: bytes, *, is_wrapped: bool = True) -> Path:
    (tmp_path / "in.tar.gz").write_bytes(content)
    unpack_archive(tmp_path / "in.tar.gz", tmp_path / "out/target", is_wrapped=is_wrapped)
    return tmp_path / "out/target"


def test_the_wrapping_folder_is_taken_off(tmp_path: Path) -> None:
    target = unpacked(tmp_path, make_tar(("job-a/result.json", b"{}"), ("job-a/t/x", b"")))
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*")) == [
        "result.json",
        "t",
        "t/x",
    ]


def test_a_corpus_keeps_its_only_folder(tmp_path: Path) -> None:
    target = unpacked(tmp_path, make_tar(("tasks/a/task.toml", b"")), is_wrapped=False)
    assert (target / "tasks/a/task.toml").exists()


def test_links_of_an_archive_are_left_out(tmp_path: Path) -> None:
    link = tarfile.TarInfo("r/escape")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    target = unpacked(tmp_path, make_tar(("r/a", b"x"), link, ("r/b", b"y")))
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "r/../../evil"])
def test_a_path_that_leads_out_refuses_the_archive(tmp_path: Path, name: str) -> None:
    with pytest.raises(BrokenTransfer, match="unsafe path"):
        unpacked(tmp_path, make_tar(("r/a", b"x"), (name, b"x")))
    assert list((tmp_path / "out").iterdir()) == []


def test_bytes_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenTransfer, match="cannot be unpacked"):
        unpacked(tmp_path, b"not a tar")


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    target = unpacked(tmp_path, make_tar(("r/a", b"old")))
    with pytest.raises(CliError, match="exists already"):
        unpacked(tmp_path, make_tar(("r/a", b"new")))
    unpack_archive(tmp_path / "in.tar.gz", target, is_wrapped=True, overwrite=True)
    assert (target / "a").read_bytes() == b"new"
