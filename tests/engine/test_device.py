"""Devices and dtypes by name, and the free memory."""

import pytest
import torch

from mlmjoint import InputError
from mlmjoint.engine import device
from mlmjoint.engine.device import free_memory, pick_device, pick_dtype


def test_devices_and_dtypes():
    assert pick_device("cpu") == pick_device(torch.device("cpu")) == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    assert pick_dtype("bfloat16") is pick_dtype(torch.bfloat16) is torch.bfloat16
    assert pick_dtype("float32", "mps") is torch.float32


def test_a_containers_limit_bounds_the_free_memory(tmp_path, monkeypatch):
    limited, unlimited = tmp_path / "limited", tmp_path / "unlimited"
    limited.write_text("123\n")
    unlimited.write_text("max\n")
    monkeypatch.setattr(device, "CONTAINER_LIMITS", (tmp_path / "missing", unlimited))
    assert free_memory("cpu") > 2**20
    monkeypatch.setattr(device, "CONTAINER_LIMITS", (unlimited, limited))
    assert free_memory("cpu") == 123


UNKNOWN = "unknown device .*; choose auto, cpu, cuda, cuda:N or"
AWAY = "no device '{}' here; torch sees . of .*; use 'cpu'"
REFUSED = [
    *((pick_device, [name], UNKNOWN) for name in ("gpu", "", 3.5, "meta")),
    *((pick_device, [name], AWAY.format(name)) for name in ("cuda", "mps", "cpu:1")),
    *((pick_dtype, [name], "unknown dtype .*; choose one of float32") for name in ("int8", None)),
    (pick_dtype, [torch.float64, "mps"], "float64 does not exist on device 'mps'; use float32"),
]


@pytest.mark.parametrize(("pick", "names", "message"), REFUSED)
def test_what_is_not_here_is_refused(pick, names, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        pick(*names)
