"""Routes of the contract whose features come with later releases: refused by name, never a stub.

The caller is authenticated first, so that nothing is told to strangers.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.platform import CallerDep
from domain.errors import ApiError

router = APIRouter()

_SKILLS = "skills"
_SECRETS = "managed secrets"
_UPLOADED = "uploaded jobs"
_SHARING = "sharing"
_SEARCH = "job comparison"
_ANALYSES = "analyses"
_CHECKS = "checks"
_FILESYSTEM = "the file system of a run"
_ORGS = "shared organizations"

_TASK = "/api/datasets/{name:segment}/versions/{version:segment}/tasks/{task:segment}"
_JOB = "/api/jobs/{job_id:segment}"
_TRIAL = "/api/trials/{trial_id:segment}"
_CHECK = "/api/checks/{check_id:segment}"
_OWNERS = (_TRIAL, "/api/analyses/{analysis_id:segment}", _CHECK + "/tasks/{task_check_id:segment}")

# (methods, path, what it is part of), literal paths before those with an id.
_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/api/orgs", _ORGS),
    ("POST", "/api/orgs/invites/accept", _ORGS),
    ("POST", "/api/orgs/{org:segment}/invites", _ORGS),
    ("GET", f"{_TASK}/filesystem", _FILESYSTEM),
    ("GET", f"{_TASK}/filesystem/files", _FILESYSTEM),
    ("GET", f"{_TASK}/filesystem/files/{{path:tail}}", _FILESYSTEM),
    ("GET POST", "/api/skills", _SKILLS),
    ("GET DELETE", "/api/skills/{skill_id:segment}", _SKILLS),
    ("GET POST DELETE", "/api/managed-secrets", _SECRETS),
    ("GET", "/api/jobs/compare", _SEARCH),
    ("GET", "/api/jobs/imports", _UPLOADED),
    ("GET", "/api/jobs/imports/{import_id:segment}", _UPLOADED),
    ("POST", "/api/jobs/upload", _UPLOADED),
    ("POST", "/api/jobs/upload/uploads", _UPLOADED),
    ("HEAD PATCH", "/api/jobs/upload/uploads/{session_id:segment}", _UPLOADED),
    ("POST", "/api/jobs/upload/uploads/{session_id:segment}/complete", _UPLOADED),
    ("POST", f"{_JOB}/analyze", _ANALYSES),
    ("POST", f"{_JOB}/share", _SHARING),
    ("POST", f"{_JOB}/unshare", _SHARING),
    ("GET", f"{_JOB}/shares", _SHARING),
    ("GET", "/api/analyses", _ANALYSES),
    ("GET", "/api/analyses/defaults", _ANALYSES),
    ("GET", "/api/analyses/{analysis_id:segment}/download", _ANALYSES),
    ("GET POST", "/api/checks", _CHECKS),
    ("GET", "/api/checks/defaults", _CHECKS),
    ("GET DELETE", _CHECK, _CHECKS),
    ("GET", f"{_CHECK}/download", _CHECKS),
    ("POST", f"{_CHECK}/share", _SHARING),
    ("POST", f"{_CHECK}/unshare", _SHARING),
    ("GET", f"{_CHECK}/shares", _SHARING),
    *(
        (method, f"{owner}/{tail}", _FILESYSTEM)
        for owner in _OWNERS
        for method, tail in (
            ("GET", "filesystem"),
            ("GET", "filesystem/files"),
            ("GET", "filesystem/files/{path:tail}"),
            ("GET", "filesystem/search"),
            ("GET", "filesystem/changes"),
            ("GET", "filesystem/archive"),
            ("POST", "filesystem/watch"),
            ("GET", "filesystem/events"),
            ("GET", "logs"),
            ("GET", "logs/events"),
            ("GET", "procs"),
        )
    ),
)
_FEATURES = {path: feature for _, path, feature in _ROUTES}


async def refuse(request: Request, caller: CallerDep) -> Response:
    """`feature_unsupported`, naming what the route is part of."""
    feature = _FEATURES[request.scope["route"].path]
    raise ApiError(
        "feature_unsupported",
        f"This release does not have {feature} yet.",
        details={"feature": feature, "method": request.method},
    )


for _methods, _path, _ in _ROUTES:
    router.add_api_route(_path, refuse, methods=_methods.split())
