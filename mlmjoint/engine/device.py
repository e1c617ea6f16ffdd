"""Devices and dtypes by name, and the memory that is free on a device."""

import contextlib
from pathlib import Path

import psutil
import torch

from .. import checks
from ..errors import InputError

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}

# Docker's memory limit, in version 2 and 1 of control groups.
CONTAINER_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Turn a name into a device that exists here; "auto" prefers cuda, then mps, then cpu."""
    counts = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    try:
        device = torch.device(name)
        count = counts[device.type]
    except (RuntimeError, TypeError, KeyError) as error:
        raise InputError(
            f"unknown device {str(name)!r}; choose auto, cpu, cuda, cuda:N or mps"
        ) from error
    if (device.index or 0) >= count:
        raise InputError(
            f"no device {str(name)!r} here; torch sees {count} of type {device.type}; use 'cpu'"
        )
    return device


def pick_dtype(name: str | torch.dtype = "float32", device="cpu") -> torch.dtype:
    """Turn a name into the torch dtype of a model's weights, if the device has it."""
    name = str(name).removeprefix("torch.")
    checks.one_of("dtype", name, DTYPES)
    dtype = DTYPES[name]
    if dtype == torch.float64 and torch.device(device).type == "mps":
        raise InputError("dtype float64 does not exist on device 'mps'; use float32, or 'cpu'")
    return dtype


def free_memory(device: str | torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Blocks the caching allocator holds but no tensor uses are free for us too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    free = psutil.virtual_memory().available
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
            free = min(free, int(Path(limit).read_text(encoding="ascii")))
    return free
