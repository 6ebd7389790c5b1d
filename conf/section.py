"""What all sections of the configuration have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

_END = 1 << 63


class Section(BaseModel):
    """Frozen and strict; the text under each field is its description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*")
    @classmethod
    def _fits_64_bits(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what no loop or array can count to; a seed's bound is its own."""
        numbers = value if isinstance(value, tuple) else (value,)
        too_large = [number for number in numbers if isinstance(number, int) and number >= _END]
        if too_large and not (info.field_name or "").endswith("seed"):
            raise ValueError(f"must be below 2^63 (got {too_large[0]})")
        return value
