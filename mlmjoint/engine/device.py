"""Where tensors live: the device and dtype a user names, and the memory left there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from ..errors import InputError

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


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
    """Turn a dtype name into the torch dtype the model's weights are held in on a device."""
    if not (isinstance(name, torch.dtype) and name in DTYPES.values()) and name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    dtype = DTYPES.get(name, name)
    if dtype == torch.float64 and torch.device(device).type == "mps":
        raise InputError("dtype float64 does not exist on device 'mps'; use float32, or 'cpu'")
    return dtype


def writes_into_views(tensor: torch.Tensor) -> bool:
    """Whether a product's ``out`` may be part of a tensor. Metal loses the result without a word
    before macOS 15 (pytorch issue 104832).
    """
    return tensor.device.type != "mps"


def free_memory(device: str | torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Blocks the caching allocator holds but no tensor uses are free for us too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return min(int(line.split()[1]) * 1024, _group_memory())
    except OSError:
        pass
    # No /proc (macOS, Windows): half the physical memory is a safe guess of what is free.
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 1024**3


def _group_memory(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Bytes left to this process below the limits of its control groups: Docker's, Slurm's."""
    left = sys.maxsize
    try:
        lines = Path(groups).read_text(encoding="utf-8").splitlines()
    except OSError:
        return left
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if not kinds:  # version 2
            top, names = Path(root), ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            top = Path(root, "memory")
        else:
            continue
        own = top / place.lstrip("/")
        for folder in (own, *own.parents):
            left = min(left, _below_limit(folder, *names))
            if folder == top:
                break
    return left


def _below_limit(folder: Path, limit: str, used: str, cache: str) -> int:
    try:
        limit, used = (int((folder / name).read_text()) for name in (limit, used))
        held = (folder / "memory.stat").read_text().splitlines()
        cached = int(dict(line.split() for line in held).get(cache, 0))  # given back when asked for
    except (OSError, ValueError):  # no such group, or no limit: "max"
        return sys.maxsize
    return max(0, limit - used + cached)
