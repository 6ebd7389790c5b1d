"""Parameters of the flows: a browser shows a form, the flow receives a whole configuration."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from conf.form import CacheForm, Form, PrepareForm, TrainForm, filled_in, form_schema
from conf.grid import Grid, parse_grid
from conf.schema import PipelineConfig
from flows.environment import STATE_DIR_VARIABLE


def _configuration(form: type[Form], value: Any) -> Any:
    """Make what a form was filled in with a configuration; a configuration stays as it is."""
    if isinstance(value, PipelineConfig):
        return value
    state_dir = os.environ.get(STATE_DIR_VARIABLE)
    return filled_in(form.model_validate(value), [f"state_dir={json.dumps(state_dir)}"] if state_dir else [])


ToPrepare = Annotated[
    PipelineConfig, BeforeValidator(partial(_configuration, PrepareForm)), WithJsonSchema(form_schema(PrepareForm))
]
"""Configuration of a flow that prepares a graph."""
ToCache = Annotated[
    PipelineConfig, BeforeValidator(partial(_configuration, CacheForm)), WithJsonSchema(form_schema(CacheForm))
]
"""Configuration of a flow that profiles accesses and plans caches."""
ToTrain = Annotated[
    PipelineConfig, BeforeValidator(partial(_configuration, TrainForm)), WithJsonSchema(form_schema(TrainForm))
]
"""Configuration of a flow that trains."""


def _grid(value: Any) -> Any:
    return parse_grid(value) if isinstance(value, list | tuple) else value


_LINES = {"type": "array", "items": {"type": "string", "pattern": r"^\s*[a-z_.]+\s*=."}, "minItems": 1}
ToCompare = Annotated[Grid, BeforeValidator(_grid), WithJsonSchema(_LINES)]
"""Values to try, by dotted key; a form has one `a.b=v,w` a line."""


def shown(title: str, description: str, default: Any = ...) -> Any:
    """Give a flow's parameter a title and a description in the form, and a default unless it must be filled in."""
    return Field(default, description=description, json_schema_extra={"title": title})


CONFIG: Any = shown("What to run", "Fields that are left empty stay as the data set's preset has them.")
"""The `config` parameter of a flow."""
VERIFY_INPUTS: Any = shown(
    "Verify inputs", "Hash the input files anew instead of trusting their size, time and inode.", False
)
"""The `verify_inputs` parameter of a flow."""
FILLED_IN: dict[str, Any] = {"config": {"dataset": "demo"}}
"""What the forms hold before anybody types."""
