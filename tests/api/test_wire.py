"""Contract §1: keys, envelope, raw paths, headers, limits."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
from evolve import EvolveAPIError, HostedClientConfig, auth, meta
from evolve.hosted import HostedErrorCode

from tests.api.conftest import Api
from tests.api.seeding import add_dataset

REAL_CODES = set(get_args(HostedErrorCode)) | {"method_not_allowed"}


def raw_request(api: Api, method: str, path: str, **headers: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """One request over a socket of its own, header names as they came."""
    connection = HTTPConnection(urlsplit(api.url).netloc, timeout=10)
    connection.request(method, path, headers={**api.headers(), **headers})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.getheaders(), body


async def error_of(api: Api, method: str, path: str, **options: Any) -> dict[str, Any]:
    answer = await api.http.request(method, path, **options)
    assert answer.status_code >= 400
    error = answer.json()["error"]
    assert error["code"] in REAL_CODES
    assert error["message"]
    assert error["requestId"] == answer.headers["x-request-id"]
    return {"status": answer.status_code, **error}


async def test_meta_answers_without_a_key(api: Api):
    document = await meta(HostedClientConfig(base_url=api.url))
    assert len(document.error_codes) == 124
    assert document.limits["job"]["default_max_retries"] == 2
    assert [provider.name for provider in document.sandbox_providers if provider.default] == ["local"]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_authorization"),
        ("", "missing_authorization"),
        ("Basic abc", "missing_authorization"),
        ("Bearer evk_unknown", "invalid_api_key"),
        ("Bearer ü", "invalid_api_key"),
    ],
)
async def test_a_key_is_asked_for_everywhere_else(api: Api, header: str | None, code: str):
    for path in ("/api/jobs", "/api/auth/status", "/api/checks", "/api/jobs/x/retry"):
        method = "POST" if path.endswith("retry") else "GET"
        headers = {"Authorization": b"" if header is None else header.encode()}
        request = api.http.build_request(method, path, headers=headers)
        if header is None:
            del request.headers["Authorization"]
        answer = await api.http.send(request)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)


async def test_a_revoked_key_is_unknown(api: Api):
    pool = await api.db.pool()
    await pool.execute("UPDATE api_keys SET revoked_at = now() WHERE label = 'tests'")
    assert (await error_of(api, "GET", "/api/jobs"))["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/jobs"),
        ("POST", "/api/trials/stop"),
        ("POST", "/api/datasets/publish"),
        ("DELETE", "/api/jobs/x"),
        ("PATCH", "/api/datasets/x"),
        ("POST", "/api/agents"),
        ("DELETE", "/api/managed-secrets"),
    ],
)
async def test_a_read_only_key_may_only_read(api: Api, method: str, path: str):
    headers = api.headers(api.read_only_key)
    error = await error_of(api, method, path, headers=headers)
    assert (error["status"], error["code"]) == (403, "read_only_key")
    assert (await api.http.get("/api/jobs", headers=headers)).status_code == 200


async def test_auth_status_and_orgs_read_with_the_published_client(api: Api):
    status = await auth(HostedClientConfig(base_url=api.url, api_key=api.key)).status()
    assert (status.email, status.key.label) == ("owner@localhost", "tests")
    client = api.published()
    (org,) = await client.orgs.list()
    assert (org.slug, org.personal, org.role) == ("personal", True, "owner")
    assert (await client.orgs.get("personal")).member_count == 1
    (member,) = await client.orgs.members("personal")
    assert (member.email, member.role) == ("owner@localhost", "owner")
    with pytest.raises(EvolveAPIError) as caught:
        await client.orgs.get("stranger")
    assert (caught.value.code, caught.value.status) == ("org_not_found", 404)


async def test_a_slash_inside_a_segment_is_data(api: Api):
    await add_dataset(api.db, api.caller, "org/name")
    client = api.published()
    dataset = await client.datasets.get("org/name")
    assert dataset.name == "org/name"
    assert (await client.datasets.get("org/name@1.0")).selected_version.version == "1.0"
    assert (await error_of(api, "GET", "/api/datasets/org/name"))["code"] == "not_found"
    assert (await error_of(api, "GET", "/api/datasets/org%2Fother"))["message"] == "No dataset org/other."


async def test_names_with_every_kind_of_letter_are_one_segment(api: Api):
    name = "a b+c?d#e%f:ü"
    await add_dataset(api.db, api.caller, name)
    assert (await api.published().datasets.get(name)).name == name


async def test_literal_routes_win_over_ids(api: Api):
    assert (await error_of(api, "GET", "/api/jobs/compare?ids=a,b"))["code"] == "feature_unsupported"
    assert (await api.http.get("/api/datasets/imports")).json()["items"] == []
    assert (await error_of(api, "GET", "/api/datasets/preflight"))["code"] == "dataset_not_found"


@pytest.mark.parametrize(
    "path", ["/api/jobs/", "//api/jobs", "/api", "/", "/api/nowhere", "/docs", "/openapi.json"]
)
async def test_no_path_is_ever_redirected(api: Api, path: str):
    answer = await api.http.get(f"{api.url}{path}", follow_redirects=False)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in {"not_found", "job_not_found"}


async def test_a_wrong_method_is_told_in_the_envelope(api: Api):
    error = await error_of(api, "PUT", "/api/jobs")
    assert (error["status"], error["code"]) == (405, "method_not_allowed")


async def test_header_names_come_in_the_case_that_the_client_looks_for(api: Api):
    _, headers, body = await asyncio.to_thread(raw_request, api, "GET", "/api/jobs")
    names = [name for name, _ in headers]
    assert "Content-Length" in names
    assert "content-length" not in names
    assert dict(headers)["Content-Length"] == str(len(body))


async def test_nothing_is_compressed(api: Api):
    _, headers, body = await asyncio.to_thread(
        raw_request, api, "GET", "/api/meta", **{"Accept-Encoding": "gzip, br"}
    )
    assert "content-encoding" not in {name.lower() for name, _ in headers}
    assert json.loads(body)["schema_version"] == 1


@pytest.mark.parametrize(
    ("path", "code", "param"),
    [
        ("/api/jobs?limit=0", "invalid_limit", "limit"),
        ("/api/jobs?limit=1001", "invalid_limit", "limit"),
        ("/api/jobs?limit=x", "invalid_limit", "limit"),
        ("/api/jobs?limit=1e9", "invalid_limit", "limit"),
        ("/api/jobs?limit=99999999999999999999", "invalid_limit", "limit"),
        ("/api/jobs?limit=%C2%B2", "invalid_limit", "limit"),
        ("/api/jobs?limit=", "invalid_limit", "limit"),
        ("/api/jobs?cursor=zzz", "invalid_cursor", "cursor"),
        ("/api/jobs?cursor=", "invalid_cursor", "cursor"),
        ("/api/jobs?cursor=WzFd", "invalid_cursor", "cursor"),
        ("/api/jobs?scope=all", "invalid_input", "scope"),
        ("/api/jobs?kind=x", "invalid_input", "kind"),
        ("/api/jobs?uploaded=1", "invalid_input", "uploaded"),
        ("/api/jobs?search=%00", "invalid_input", None),
        ("/api/datasets/imports?status=DONE", "invalid_status", "status"),
        ("/api/jobs/%00", "not_found", None),
    ],
)
async def test_a_bad_query_names_its_parameter(api: Api, path: str, code: str, param: str | None):
    error = await error_of(api, "GET", path)
    assert (error["code"], error.get("param")) == (code, param)


@pytest.mark.parametrize(
    ("body", "code"), [(b"{", "invalid_json"), (b"[]", "invalid_json"), (b"", "invalid_input")]
)
async def test_a_bad_body_is_refused(api: Api, body: bytes, code: str):
    assert (await error_of(api, "POST", "/api/jobs", content=body))["code"] == code


async def test_a_huge_body_is_refused_with_413(api: Api):
    body = b'{"job_name": "' + b"x" * (33 * 1024 * 1024) + b'"}'
    error = await error_of(api, "POST", "/api/jobs", content=body)
    assert (error["status"], error["code"]) == (413, "invalid_input")


LATER = [
    ("POST", "/api/orgs"),
    ("POST", "/api/orgs/personal/invites"),
    ("POST", "/api/orgs/invites/accept"),
    ("GET", "/api/skills/name%3Amine"),
    ("GET", "/api/managed-secrets"),
    ("DELETE", "/api/managed-secrets"),
    ("GET", "/api/jobs/compare?ids=a,b"),
    ("POST", "/api/jobs/upload"),
    ("POST", "/api/jobs/upload/uploads"),
    ("PATCH", "/api/jobs/upload/uploads/x"),
    ("GET", "/api/jobs/imports/x"),
    ("POST", "/api/jobs/x/analyze"),
    ("GET", "/api/jobs/x/shares"),
    ("GET", "/api/trials/x/filesystem"),
    ("GET", "/api/trials/x/filesystem/files/app/x%20y"),
    ("GET", "/api/trials/x/logs/events"),
    ("GET", "/api/analyses/defaults"),
    ("GET", "/api/analyses/x/procs"),
    ("POST", "/api/checks"),
    ("GET", "/api/checks/x/tasks/y/filesystem/search?q=a"),
    ("GET", "/api/datasets/a/versions/b/tasks/c/filesystem/files/task.toml"),
]


@pytest.mark.parametrize(("method", "path"), LATER)
async def test_routes_of_later_releases_refuse_by_name(api: Api, method: str, path: str):
    error = await error_of(api, method, path)
    assert (error["status"], error["code"]) == (422, "feature_unsupported")
    assert error["details"]["feature"]


async def test_the_published_client_reads_a_refusal(api: Api):
    with pytest.raises(EvolveAPIError) as caught:
        await api.published().jobs.analyze("x")
    assert (caught.value.code, caught.value.status) == ("feature_unsupported", 422)
    assert caught.value.request_id
