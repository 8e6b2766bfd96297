"""The models of a key, as each protocol lists them: those it may call, and no others."""

from __future__ import annotations

from typing import Any

from gateway.denials import Denial
from gateway.native_errors import Protocol
from store.keys import ANY_MODEL, GrantedModel, KeyGrant

# Lists tell when a model was made; ours does not matter to anybody.
_CREATED = 1_700_000_000
_CREATED_AT = "2023-11-14T22:13:20Z"


def list_models(protocol: Protocol, grant: KeyGrant) -> dict[str, Any]:
    """All that the key names, in one page; a family's are not counted up."""
    models = [_model(protocol, model) for model in grant.models if model.name != ANY_MODEL]
    if protocol == "gemini":
        return {"models": models}
    if protocol == "openai":
        return {"object": "list", "data": models}
    ids = [model["id"] for model in models]
    return {
        "data": models,
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }


def one_model(protocol: Protocol, grant: KeyGrant, name: str) -> dict[str, Any]:
    """Raises `Denial` for one that the key may not call."""
    model = grant.model(name)
    if model is None:
        raise Denial("no_model", f"The model `{name[:200]}` does not exist or this key may not use it")
    return _model(protocol, model)


def _model(protocol: Protocol, model: GrantedModel) -> dict[str, Any]:
    name = model.name
    if protocol == "openai":
        return {"id": name, "object": "model", "created": _CREATED, "owned_by": model.provider}
    if protocol == "anthropic":
        return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED_AT}
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
