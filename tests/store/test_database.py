"""What goes into JSONB."""

from __future__ import annotations

import json

import pytest

from store.database import Database, encode_json


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\0b", "a\ufffdb"),
        ("\\\0", "\\\ufffd"),
        (r"\u0000", r"\u0000"),
        ({"k\0": ["\0\0", 1]}, {"k\ufffd": ["\ufffd\ufffd", 1]}),
    ],
)
async def test_a_nul_costs_no_record_and_what_only_looks_like_one_stays(
    db: Database, value: object, stored: object
) -> None:
    pool = await db.pool()
    assert await pool.fetchval("SELECT $1::jsonb", value) == stored


def test_numbers_that_json_has_not_are_null() -> None:
    assert json.loads(encode_json([float("nan"), float("inf")])) == [None, None]
