"""Datasets: catalog, publish, imports, download."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from api.answers import json_answer, no_content
from api.archives_in import publication_of, spooled, store_archive
from api.downloads import Package, package_answer
from api.limits import MAX_CONCURRENT_IMPORTS, MAX_DATASET_ARCHIVE_BYTES, Gate
from api.multipart import Form, read_form
from api.platform import CallerDep, Platform, PlatformDep
from api.queries import comma_words, json_body, page_request
from domain.errors import ApiError
from domain.preflight import PreflightRequest, preflight
from domain.requests import parse_request
from domain.vocabulary import ImportStatus
from store import dataset_reads, publish
from store.accounts import Caller

router = APIRouter()

_PARTS = frozenset({"name", "version", "org", "git_url", "git_ref", "git_path", "archive_url", "hub_package"})
_SOURCES = ("git_url", "archive_url", "hub_package")
_imports = Gate("too_many_concurrent_imports", MAX_CONCURRENT_IMPORTS)


@router.get("/api/datasets")
async def list_datasets(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """The catalog, by name."""
    page = page_request(request, dataset_reads.LIST_CURSOR)
    search = request.query_params.get("search")
    return json_answer(await dataset_reads.list_datasets(platform.db, caller, page, search=search))


@router.post("/api/datasets/publish")
async def publish_dataset(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Accept an uploaded corpus; what its metadata can be refused for is refused before its bytes."""
    with _imports.enter():
        form = await read_form(request, _PARTS)
        _check_source(form)
        name, version, org = (form.fields.get(part) for part in ("name", "version", "org"))
        for param, value in (("name", name), ("version", version)):
            if value is not None:
                publish.check_label(param, value)
        await publish.check_name(platform.db, caller, name, org)
        import_id = await _receive(platform, caller, form)
    platform.outbox.wake()
    return json_answer(await dataset_reads.read_import(platform.db, caller, import_id), 202)


@router.post("/api/datasets/preflight")
async def judge(request: Request, caller: CallerDep) -> Response:
    """What a publish of these task.toml files would be refused for; writes nothing."""
    body = parse_request(PreflightRequest, await json_body(request))
    return json_answer(await asyncio.to_thread(preflight, body))


@router.get("/api/datasets/imports")
async def list_imports(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """The caller's own imports, newest first."""
    document = await dataset_reads.list_imports(
        platform.db,
        caller,
        page_request(request, dataset_reads.IMPORTS_CURSOR),
        statuses=comma_words(request, "status", ImportStatus, "invalid_status"),
        dataset=request.query_params.get("dataset"),
    )
    return json_answer(document)


@router.get("/api/datasets/imports/{import_id:segment}")
async def read_import(import_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """One import."""
    return json_answer(await dataset_reads.read_import(platform.db, caller, import_id))


@router.get("/api/datasets/{name:segment}")
async def read_dataset(name: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """One dataset; `version`, or the active one, is the one whose tasks are paged."""
    document = await dataset_reads.read_dataset(
        platform.db,
        caller,
        name,
        page_request(request, dataset_reads.TASKS_CURSOR),
        version=request.query_params.get("version"),
    )
    return json_answer(document)


@router.patch("/api/datasets/{name:segment}")
async def watch_upstream(name: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Only a git source has an upstream that moves, and none can be published in this release."""
    body = await json_body(request)
    if set(body) != {"upstream_auto_import"} or not isinstance(body["upstream_auto_import"], bool):
        message = "upstream_auto_import: the one member, true or false."
        raise ApiError("invalid_input", message, param="upstream_auto_import")
    await dataset_reads.find_dataset(platform.db, caller, name)
    raise ApiError("upstream_not_watchable", f"{name} does not come from a git ref that moves.")


@router.delete("/api/datasets/{name:segment}")
async def delete_dataset(name: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Remove a dataset that no job names."""
    for key in await publish.delete_dataset(platform.db, caller, name):
        await platform.blobs.delete(key)
    return no_content()


@router.get("/api/datasets/{name:segment}/download")
async def download(name: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """The corpus as it was uploaded."""
    dataset = await dataset_reads.find_dataset(platform.db, caller, name)
    version = await dataset_reads.find_version(platform.db, dataset, request.query_params.get("version"))
    if version is None:
        raise ApiError("no_active_version", f"{name} has no active version; name one.", param="version")
    if version["package_key"] is None:
        raise ApiError("package_not_retained", f"{name}@{version['version']} has no package.")
    package = Package(
        version["package_key"], version["package_sha256"], version["package_bytes"], f"{name}-corpus.tar.gz"
    )
    return await package_answer(platform.blobs, package)


@router.post("/api/datasets/{name:segment}/versions/{version:segment}/activate")
async def activate(
    name: str, version: str, request: Request, platform: PlatformDep, caller: CallerDep
) -> Response:
    """Point the bare name at a version."""
    await publish.activate_version(platform.db, caller, name, version)
    page = page_request(request, dataset_reads.TASKS_CURSOR)
    return json_answer(await dataset_reads.read_dataset(platform.db, caller, name, page))


@router.get("/api/datasets/{name:segment}/versions/{version:segment}/tasks/{task:segment}/build")
async def task_build(
    name: str, version: str, task: str, platform: PlatformDep, caller: CallerDep
) -> Response:
    """How one task's build ended."""
    return json_answer(await dataset_reads.read_task_build(platform.db, caller, name, version, task))


def _check_source(form: Form) -> None:
    named = [part for part in _SOURCES if part in form.fields]
    if len(named) + (form.archive is not None) != 1:
        message = f"archive: exactly one source; of archive, {', '.join(_SOURCES)}."
        raise ApiError("invalid_input", message, param="archive")
    if named:
        message = f"{named[0]}: this release publishes uploaded directories only."
        raise ApiError("feature_unsupported", message, param=named[0])


async def _receive(platform: Platform, caller: Caller, form: Form) -> str:
    assert form.archive is not None
    async with spooled(form.archive, MAX_DATASET_ARCHIVE_BYTES) as spool:
        publication = await publication_of(form.fields, spool)
        archive = await store_archive(platform.blobs, spool)
    try:
        return await publish.publish_archive(platform.db, caller, publication, archive)
    except ApiError:
        await platform.blobs.delete(archive.key)
        raise
