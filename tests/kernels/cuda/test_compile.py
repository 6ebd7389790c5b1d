"""Every kernel compiles for sm_80 and sm_90, and no register spills to local memory."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.cuda.sample import group_shape
from kernels.cuda.source import SOURCES, Kernel, c_type, parameters
from tests.cudasim.compiler import COMPILER, NVRTC, CompileError, by_nvrtc, resources
from tests.cudasim.instances import INSTANCES

needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="neither nvcc nor nvidia-cuda-nvrtc is installed: the kernels are NOT compiled here"
)
OTHER_FANOUTS = tuple(
    f"sample_parted<{ids}, {position}, {k}, {group_shape(k).lanes}, {group_shape(k).rounds}, false, {numbered}>"
    for ids in ("i32", "i64")
    for position, fanouts in (("u32", (10, 15, 25, 53, 64)), ("u64", (10, 15, 20)))
    for k in fanouts
    for numbered in ("false", "true")
)


def _expressions(source: str) -> tuple[str, ...]:
    return INSTANCES[source] + (OTHER_FANOUTS if source == "sample" else ())


def test_every_source_is_proved() -> None:
    assert set(INSTANCES) == {path.stem for path in SOURCES.glob("*.cu")}
    for source, expressions in INSTANCES.items():
        text = (SOURCES / f"{source}.cu").read_text()
        for expression in expressions:
            assert f" {expression.split('<')[0]}(" in text, expression


@needs_compiler
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("source", sorted(INSTANCES))
def test_kernels_compile_without_spills(source: str, arch: int) -> None:
    found = resources(source, _expressions(source), arch)
    assert len(found) == len(_expressions(source))
    assert [resource for resource in found if resource.spilled_bytes or resource.stack_bytes] == []


@pytest.mark.skipif(NVRTC is None, reason="nvidia-cuda-nvrtc is not installed")
def test_nvrtc_takes_the_sources_as_cupy_gives_them() -> None:
    code, _ = by_nvrtc("sample", ("sample_parted<i32, u32, 5, 5, 1, false, false>",), 90, to="PTX")
    assert b".entry" in code
    with pytest.raises(CompileError, match="error"):
        by_nvrtc("sample", ("no_such_kernel<1>",), 90, to="PTX")


def test_signatures_are_read_from_the_sources() -> None:
    kernel = Kernel("classify", "scatter_classes", ("i64",))
    first = parameters(kernel)[0]
    assert first.is_array
    assert str(first.dtype) == "int64"
    with pytest.raises(ValueError, match="no kernel nothing"):
        parameters(Kernel("classify", "nothing"))
    with pytest.raises(ValueError, match="takes 1 template arguments"):
        parameters(Kernel("classify", "scatter_classes"))
    with pytest.raises(ValueError, match="no kernel takes complex128"):
        c_type(np.dtype(complex))
