"""Path parameters that are decoded one by one, after the raw path was split (contract §1.5)."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor


class SegmentConvertor(Convertor[str]):
    """`{name:segment}`: one segment as sent, decoded after the split."""

    regex: ClassVar[str] = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


class TailConvertor(Convertor[str]):
    """`{path:tail}`: the rest of the path, its segments decoded and rejoined."""

    regex: ClassVar[str] = ".+"

    def convert(self, value: str) -> str:
        return "/".join(unquote(segment) for segment in value.split("/") if segment)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("segment", SegmentConvertor())
register_url_convertor("tail", TailConvertor())
