"""Images of `local`: what a task's Dockerfile adds to this machine's own system files, kept as layers.

The steps are carried out in a box of their own, whose changes become the image's directory under
`<state>/images/<key>/`. The key is the content of the task's `environment/` and of this host's template.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from activities.sandboxes.base import BoxTag, ImageListing, ImageRef, ImageRequest
from activities.sandboxes.docker_keepalive import service_of
from activities.sandboxes.dockerfile import (
    FILE,
    CopyFiles,
    Dockerfile,
    MakeDirectory,
    RunCommand,
    parse_dockerfile,
)
from activities.sandboxes.local_box import LocalBox
from activities.sandboxes.local_copy import Context
from activities.sandboxes.local_host import LocalHost
from activities.sandboxes.local_life import remove_box, remove_tree, start_box
from activities.sandboxes.local_mounts import LAYERS, Root
from activities.sandboxes.local_pod import Making, end_pod
from activities.sandboxes.local_record import BoxDirectory, BoxRecord, locked_file
from activities.sandboxes.local_template import LINKS, ensure_template, template_key
from activities.sandboxes.local_users import find_group, find_user
from domain.errors import EvolveError, ImageBuildFailed, ProviderCreateFailure, TaskError

FORMAT = "1"
EXCERPT_BYTES = 8_000
ROOT_NAMES = ("", "0", "root")


@dataclass(frozen=True)
class LocalImage:
    """`layers` holds what was added to /, /usr and /var/lib/dpkg; `service` is what ENTRYPOINT starts."""

    layers: Path
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    user: str | None = None
    service: list[str] = field(default_factory=list[str])


class LocalImages:
    """The images of one host and user."""

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self._folder = host.state_dir / "images"
        self._sizes: dict[str, int] = {}

    def load(self, handle: str) -> LocalImage:
        """Raises `ProviderCreateFailure` when it is not on this host."""
        folder = self._folder / handle
        try:
            return LocalImage(folder, **json.loads((folder / "image.json").read_bytes()))
        except FileNotFoundError as error:
            raise ProviderCreateFailure(f"the image {handle!r} is not on this host") from error

    async def ensure(self, request: ImageRequest) -> ImageRef:
        """Find or build, once among all processes. Raises `TaskError` or `ImageBuildFailed`."""
        if request.docker_image:
            raise TaskError(
                f"local boxes run on this machine's own system files, not on {request.docker_image!r}",
                param="environment.docker_image",
            )
        key = _image_key(request)
        if not (self._folder / key).exists():
            dockerfile = _read_dockerfile(request.context_dir)
            self._refuse(dockerfile)
            async with locked_file(self._host.state_dir / "locks" / f"image-{key}"):
                if not (self._folder / key).exists():
                    await self._build(key, request, dockerfile)
        service = self.load(key).service
        return ImageRef(id=_image_id(key), handle=key, base_image_replaced=True, starts_service=bool(service))

    async def lost_builds(self, *, is_dry: bool) -> list[str]:
        """The boxes of builders that died, which are ended."""
        lost: list[str] = []
        for name in self._host.build_names():
            directory = BoxDirectory(self._host.builds, name)
            async with directory.locked_if_free() as is_lost:
                if is_lost:
                    lost.append(name)
                if is_lost and not is_dry:
                    await remove_box(directory)
                    directory.forget_lock()
        return lost

    async def built(self) -> list[ImageListing]:
        """Every image of this host; each is measured once, since it never changes."""
        return await asyncio.to_thread(lambda: [self._listing(path) for path in self._whole()])

    def _whole(self) -> list[Path]:
        return [path.parent for path in self._folder.glob("*/image.json") if not path.parent.suffix]

    def _listing(self, folder: Path) -> ImageListing:
        key = folder.name
        if key not in self._sizes:
            self._sizes[key] = _size_of(folder)
        made_at = datetime.fromtimestamp((folder / "image.json").stat().st_mtime, UTC)
        return ImageListing(key, _image_id(key), self._sizes[key], made_at)

    async def remove(self, key: str) -> None:
        """Out of sight at once; absent is done."""
        async with locked_file(self._host.state_dir / "locks" / f"image-{key}"):
            going = self._folder / f"{key}.going"
            if (self._folder / key).exists():
                (self._folder / key).rename(going)
            await asyncio.to_thread(remove_tree, going)

    def _refuse(self, dockerfile: Dockerfile) -> None:
        """What needs root, when we are not."""
        if self._host.is_root:
            return
        for step in dockerfile.steps:
            if isinstance(step, RunCommand):
                raise _needs_root(step.line, "RUN")
            if isinstance(step, CopyFiles) and not set((step.owner or "").split(":")) <= set(ROOT_NAMES):
                raise _needs_root(step.line, f"COPY --chown={step.owner}")
            if isinstance(step, CopyFiles) and step.target.split("/")[1] in ("usr", *LINKS):
                raise _needs_root(step.line, f"a COPY to {step.target}")
        if dockerfile.user:
            raise TaskError(f"{FILE}: USER {dockerfile.user} needs a worker that is root", param=FILE)

    async def _build(self, key: str, request: ImageRequest, dockerfile: Dockerfile) -> None:
        directory = BoxDirectory(self._host.builds, key)
        async with directory.locked() as lock:
            await remove_box(directory)  # of a builder that died
            try:
                async with asyncio.timeout(request.build_timeout_sec):
                    making = Making(self._host, directory, lock)
                    await self._carry_out(making, request, dockerfile)
                await end_pod(directory)
                await asyncio.to_thread(self._publish, key, directory, dockerfile)
            except TimeoutError as error:
                message = f"the image did not build within {request.build_timeout_sec:g} s"
                raise ImageBuildFailed(message) from error
            finally:
                await remove_box(directory)

    async def _carry_out(self, making: Making, request: ImageRequest, dockerfile: Dockerfile) -> None:
        lacking = await self._host.why_not_public()
        tag = BoxTag(request.installation_id, "", making.directory.name, 0, 0, "agent", 0)
        record = BoxRecord(tag, "no-network" if lacking else "public", "/", dict(dockerfile.env))
        making.directory.write(record)
        root = Root(await ensure_template(self._host.state_dir))
        box, _ = await start_box(making, record, root, request.build_timeout_sec + 60)
        builder = _Builder(box, await asyncio.to_thread(Context, request.context_dir), self._host.is_root)
        for step in dockerfile.steps:
            try:
                await builder.carry_out(step, request.build_timeout_sec)
            except ImageBuildFailed as error:
                if lacking and error.excerpt:
                    error.excerpt += f"\n(the build had no network: {lacking})"
                raise

    def _publish(self, key: str, directory: BoxDirectory, dockerfile: Dockerfile) -> None:
        """The box's changes become the image; whole or not at all."""
        new = self._folder / f"{key}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for name in LAYERS:
            (directory.layers / name).rename(new / name)
        image = LocalImage(
            new, dockerfile.env, dockerfile.workdir, dockerfile.user, service_of(dockerfile.entrypoint)
        )
        stored = asdict(image)
        del stored["layers"]
        (new / "image.json").write_text(json.dumps(stored))
        new.rename(self._folder / key)


def _image_id(key: str) -> str:
    return f"local:{key}"


def _size_of(folder: Path) -> int:
    """What its files take up; links are not followed, and what another name has already is counted twice."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _image_key(request: ImageRequest) -> str:
    parts = [FORMAT, request.context_digest, template_key()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _read_dockerfile(context_dir: Path) -> Dockerfile:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (context_dir / name).exists():
            raise TaskError(f"local boxes are single: environment/{name} is not honoured", param=name)
    try:
        return parse_dockerfile((context_dir / "Dockerfile").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TaskError(f"the task has no {FILE}", param=FILE) from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{FILE} is not UTF-8", param=FILE) from error


def _needs_root(line: int, what: str) -> TaskError:
    return TaskError(f"{FILE} line {line}: {what} needs a worker that is root on local", param=FILE)


class _Builder:
    """Carries steps out in the build's box."""

    def __init__(self, box: LocalBox, context: Context, is_root: bool) -> None:
        self._box = box
        self._context = context
        self._is_root = is_root

    async def carry_out(self, step: MakeDirectory | CopyFiles | RunCommand, timeout_sec: float) -> None:
        """Raises `ImageBuildFailed` with the end of the step's output, or `TaskError`."""
        if isinstance(step, RunCommand):
            await self._run(step, timeout_sec)
        elif isinstance(step, CopyFiles):
            await self._copy(step)
        else:
            await self._checked(step.line, ["mkdir", "-p", "--", step.path], b"")

    async def _run(self, step: RunCommand, timeout_sec: float) -> None:
        try:
            ended = await self._box.run(
                step.argv, user=step.user, cwd=step.cwd, env=step.env, timeout_sec=timeout_sec
            )
        except (TaskError, TimeoutError):
            raise
        except EvolveError as error:
            raise ImageBuildFailed(f"{FILE} line {step.line}: {error}") from error
        if ended.exit_code != 0:
            message = f"{FILE} line {step.line}: RUN ended with exit code {ended.exit_code}"
            raise ImageBuildFailed(message, excerpt=_excerpt(ended.stdout + ended.stderr))

    async def _copy(self, step: CopyFiles) -> None:
        is_folder = await self._box.is_folder(step.target)
        copied = await asyncio.to_thread(self._context.copy, step, target_is_folder=is_folder)
        try:
            if step.target.endswith("/") or copied.has_folder:
                await self._checked(step.line, ["mkdir", "-p", "--", step.target], b"")
            await self._box.put_tar("/", copied.tar)
        except OSError as error:
            raise ImageBuildFailed(f"{FILE} line {step.line}: {error}") from error
        if step.owner and self._is_root:
            own = [] if is_folder else [step.target.rstrip("/")]
            paths = "\0".join([*copied.paths, *own]).encode()
            command = ["xargs", "-0", "chown", "-h", await self._owner(step.owner), "--"]
            await self._checked(step.line, command, paths)

    async def _owner(self, owner: str) -> str:
        user, _, group = owner.partition(":")
        found = await find_user(self._box.read, user)
        gid = await find_group(self._box.read, group) if group else found.gid
        return f"{found.uid}:{gid}"

    async def _checked(self, line: int, argv: list[str], stdin: bytes) -> None:
        ended = await self._box.run(argv, cwd="/", stdin=stdin)
        if ended.exit_code != 0:
            raise ImageBuildFailed(f"{FILE} line {line}: {_excerpt(ended.stderr)}")


def _excerpt(told: bytes) -> str:
    return told[-EXCERPT_BYTES:].decode(errors="replace").strip()
