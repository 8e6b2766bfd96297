"""From a request's bytes to a typed model, or to the refusal that names the input at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from domain.errors import ApiError


class RequestModel(BaseModel):
    """Base of request bodies: strict types, and an unknown field is refused by its path."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises `invalid_json` for anything else. An empty body is `{}`.

    NaN, infinity and lone surrogates are no JSON; NUL characters cannot be stored and are refused.
    """
    if not body.strip():
        return {}
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError("invalid_json", f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ApiError("invalid_json", "The body must be a JSON object.")
    document = cast("dict[str, Any]", value)
    path = _path_of_nul(document)
    if path is not None:
        raise ApiError("invalid_input", f"{path}: NUL characters cannot be stored.", param=path)
    return document


def parse_request(model: type[Model], document: dict[str, Any]) -> Model:
    """The typed request; raises `invalid_input` whose `param` is the first field at fault."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = param_path(first["loc"])
        if first["type"] == "extra_forbidden":
            message = f"{param}: unknown field."
        else:
            message = f"{param}: {first['msg'].removeprefix('Value error, ')}."
        raise ApiError("invalid_input", message, param=param or None) from None


def param_path(loc: Sequence[int | str]) -> str:
    """`("agents", 0, "name")` as the contract writes it: `agents[0].name`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _path_of_nul(value: Any, path: str = "") -> str | None:
    if isinstance(value, str):
        return path if "\0" in value else None
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            if "\0" in key:
                return path or "body"
            found = _path_of_nul(item, f"{path}.{key}" if path else key)
            if found is not None:
                return found
    if isinstance(value, list):
        for position, item in enumerate(cast("list[Any]", value)):
            found = _path_of_nul(item, f"{path}[{position}]")
            if found is not None:
                return found
    return None


def sorted_keys(value: Any) -> Any:
    """The same JSON value with every object's keys in order, so that equal content has equal text."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {key: sorted_keys(items[key]) for key in sorted(items)}
    if isinstance(value, list | tuple):
        return [sorted_keys(item) for item in cast("list[Any]", value)]
    return value
