"""Which backend computes: asked for once, chosen once, said once, and never changed silently."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from kernels.cuda.probe import Probe, probe
from kernels.cuda.verdict import fault_of

Asked = Literal["auto", "cpu", "cuda"]
Backend = Literal["cpu", "cuda"]

_logger = logging.getLogger(__name__)


class NoDeviceError(ValueError):
    """The CUDA backend is asked for where it cannot work (exit code 2)."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend and why it was chosen."""

    backend: Backend
    """What computes."""
    reason: str
    """One sentence."""


def resolve_backend(asked: Asked, found: Probe | None = None, *, obstacle: str = "") -> Choice:
    """Choose the backend, and log it.

    A GPU is used only where it was seen to compute what the CPU computes (`kernels.cuda.verdict`): the first time that
    takes up to a minute.

    Parameters
    ----------
    asked : "auto", "cpu" or "cuda"
        Only `auto` may choose between the two.
    found : Probe, optional
        What this machine has; looked up by default.
    obstacle : str
        What else is asked for that the CUDA backend cannot do; empty where there is nothing.

    Returns
    -------
    Choice

    Raises
    ------
    NoDeviceError
        If `cuda` is asked for and cannot work; the message is the doctor's sentence.
    """
    if asked == "cpu":
        return _chosen(Choice("cpu", "asked for"))
    found = found or probe()
    fault = fault_of(found) if found.is_usable and not obstacle else ""
    if fault:
        obstacle = f"{found.devices[0].name}: {fault}; `garden doctor` tells more"
        _logger.warning("the GPU is not used: %s", obstacle)
    if found.is_usable and not obstacle:
        return _chosen(Choice("cuda", found.sentence))
    if asked == "cuda":
        raise NoDeviceError(f"backend: cuda cannot be used: {found.sentence if not found.is_usable else obstacle}")
    return _chosen(Choice("cpu", f"no GPU to use ({found.missing})" if found.missing else obstacle))


def _chosen(choice: Choice) -> Choice:
    _logger.info("backend: %s (%s)", choice.backend, choice.reason)
    return choice
