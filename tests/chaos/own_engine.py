"""A Docker engine of a storm's own, so that it can be killed without harm to anybody else's boxes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.stack_harness import wait_until

IMAGE = "evolve-test/debian:bookworm"
PATIENCE_SEC = 60.0


class OwnEngine:
    """`dockerd` with all that it has below `root`; without a bridge, which no box of ours needs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._engine: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """What `DOCKER_HOST` is for it."""
        return f"unix://{self._root}/docker.sock"

    def start(self) -> None:
        """Start it and wait until it answers."""
        # In a network namespace of its own: an engine without a bridge removes docker0, whosever it is.
        argv = (
            "unshare",
            "--net",
            "dockerd",
            "--data-root",
            f"{self._root}/data",
            "--exec-root",
            f"{self._root}/exec",
        )
        options = ("--pidfile", f"{self._root}/pid", "--host", self.host)
        with (self._root / "log").open("ab") as log:
            self._engine = subprocess.Popen(
                (*argv, *options, "--bridge", "none", "--iptables=false"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "the engine answers", PATIENCE_SEC)

    def _answers(self) -> bool:
        return self.run("version").returncode == 0

    def end(self, number: signal.Signals) -> None:
        """SIGKILL leaves its containers' own processes behind, for the next start to find."""
        assert self._engine is not None
        self._engine.send_signal(number)
        self._engine.wait(PATIENCE_SEC)
        (self._root / "pid").unlink(missing_ok=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ("docker", "--host", self.host, *words), text=True, capture_output=True, check=False
        )

    def take_image(self) -> None:
        """The tests' base image, from the machine's own engine."""
        saved = subprocess.Popen(("docker", "save", IMAGE), stdout=subprocess.PIPE)
        subprocess.run(
            ("docker", "--host", self.host, "load", "--quiet"),
            stdin=saved.stdout,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        assert saved.wait() == 0

    def boxes(self) -> list[str]:
        """Containers of any state."""
        return self.run("ps", "--all", "--format", "{{.Names}} {{.Status}}").stdout.splitlines()

    def clear(self) -> None:
        """Stop it with what it started, and let go of what is mounted below its root."""
        self.end(signal.SIGTERM)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_its = f"{self._root}/exec".encode() in (process / "cmdline").read_bytes()
            except OSError:
                continue
            if is_its:
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
        wait_until(self._is_unmounted, "nothing is mounted below the engine's root", PATIENCE_SEC)

    def _is_unmounted(self) -> bool:
        """Unmounts what there is; some of it goes by itself meanwhile, with the process that held it."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [point for point in (line.split()[4] for line in lines) if point.startswith(str(self._root))]
        for point in reversed(points):
            subprocess.run(("umount", "--lazy", point), capture_output=True, check=False)
        return not points


def why_no_engine() -> str | None:
    """Why none can be started here; None when one can."""
    if os.geteuid() != 0:
        return "this user is not root"
    if shutil.which("dockerd") is None:
        return "there is no dockerd"
    image = subprocess.run(("docker", "image", "inspect", IMAGE), capture_output=True, check=False)
    return None if image.returncode == 0 else f"there is no image {IMAGE}: `make setup-docker` makes it"


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    """An engine with the tests' base image, until the block ends."""
    with TemporaryDirectory(prefix="evolve-engine-", ignore_cleanup_errors=True) as root:
        engine = OwnEngine(Path(root))
        engine.start()
        try:
            engine.take_image()
            yield engine
        finally:
            engine.clear()
