"""Byte sizes as people write them: `500MB`, `2GiB`, or a whole number of bytes; nothing is guessed."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ByteSize, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

PATTERN = r"^\s*([0-9]+|[0-9]*\.?[0-9]+\s*([kKmMgGtTpPeE]([iI]?[bB])?|[bB]))\s*$"
"""How a byte size is written: as Python, Pydantic and a browser's form read regular expressions."""


class Bytes(ByteSize):
    """Pydantic's `ByteSize`, which reads as far as it understands, strictly: `12,000,000` is an error, not 12 bytes."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        lenient = super().__get_pydantic_core_schema__(source, handler)
        return core_schema.no_info_before_validator_function(_require_whole, lenient)


def _require_whole(value: Any) -> Any:
    """Refuse what is no byte size as a whole: a unit that is none, separators, truth values, half a byte."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_number |= isinstance(value, float) and value.is_integer()
    if not (is_number or (isinstance(value, str) and re.match(PATTERN, value))):
        raise PydanticCustomError("byte_size", "no byte size")
    return value
