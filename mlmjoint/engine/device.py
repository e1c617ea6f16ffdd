"""Devices and dtypes by name, and the memory that is free on a device."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

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
    if isinstance(name, str) and name == "auto":
        return torch.device(next(kind for kind, count in counts.items() if count))
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"unknown device {name!r}; choose auto, cpu, cuda, cuda:N or mps"
        ) from error
    if device.type not in counts:
        raise InputError(f"device {str(name)!r} is not supported; choose auto, cpu, cuda or mps")
    if (device.index or 0) >= counts[device.type]:
        raise InputError(
            f"no device {str(name)!r} here; torch sees {counts[device.type]} of type "
            f"{device.type}; use 'cpu'"
        )
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
    free = 4 * 1024**3  # where nothing is known (Windows)
    with contextlib.suppress(AttributeError, ValueError, OSError):  # half of it: macOS
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, StopIteration):  # Linux
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
            free = min(free, int(Path(limit).read_text(encoding="ascii")))
    return free
