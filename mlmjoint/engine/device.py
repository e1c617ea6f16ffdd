"""Devices and dtypes by name, and the memory that is free on a device."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from ..errors import InputError

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# Docker's memory limit, in version 2 and 1 of control groups.
CONTAINER_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Turn a name into a device that exists here; "auto" prefers cuda, then mps, then cpu."""
    if isinstance(name, str) and name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"unknown device {name!r}; choose auto, cpu, cuda, cuda:N or mps"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(name)!r} asked for but this torch sees no GPU; use 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InputError(
            f"device {str(name)!r} does not exist; {count} GPU(s) are here, from cuda:0"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' asked for but this torch has no Metal support; use 'cpu'")
    if device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"device {str(name)!r} is not supported; choose auto, cpu, cuda or mps")
    return device


def pick_dtype(name: str | torch.dtype = "float32", device="cpu") -> torch.dtype:
    """Turn a name into the torch dtype of a model's weights, if the device has it."""
    if not (isinstance(name, torch.dtype) and name in DTYPES.values()) and name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    dtype = DTYPES.get(name, name)
    if dtype == torch.float64 and torch.device(device).type == "mps":
        raise InputError("dtype float64 does not exist on device 'mps'; use float32, or 'cpu'")
    return dtype


def writes_into_views(tensor: torch.Tensor) -> bool:
    """False on Metal, which before macOS 15 silently drops a product whose ``out`` is a view
    (pytorch issue 104832).
    """
    return tensor.device.type != "mps"


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of long sums: float64, which Metal does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def free_memory(device: str | torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Blocks the caching allocator holds but no tensor uses are free for us too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    free = _physical_memory() // 2  # a safe guess where /proc is missing (macOS, Windows)
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
            free = min(free, int(Path(limit).read_text(encoding="ascii")))
    return free


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 1024**3
