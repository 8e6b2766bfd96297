"""Flags that belong together, declared once as a dataclass and taken by commands as one parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_flag_groups(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as Typer can read it: each parameter whose type is a dataclass becomes the fields of that
    class, options by their annotations, after the command's own; `command` is given one object again.

    Every field has a default, as every option has.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if is_dataclass(parameter.annotation)
    }

    @wraps(command)
    def spread(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    own = [parameter for parameter in signature.parameters.values() if parameter.name not in groups]
    parameters = [*own, *(option for group in groups.values() for option in _options(group))]
    spread.__dict__["__signature__"] = signature.replace(parameters=parameters)
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _options(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        yield inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
