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


@pytest.mark.parametrize("name", ["gpu", "", 3.5, "meta"])
def test_an_unknown_device(name):
    with pytest.raises(InputError, match=r"unknown device .*; choose auto, cpu, cuda, cuda:N or"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda", "mps", "cpu:1"])
def test_a_device_that_is_not_here(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"no device '{name}' here; torch sees . of .*; use 'cpu'"):
        pick_device(name)


@pytest.mark.parametrize("name", ["float64", torch.float64])
def test_metal_has_no_float64(name):
    with pytest.raises(InputError, match="float64 does not exist on device 'mps'; use float32"):
        pick_dtype(name, "mps")


@pytest.mark.parametrize("name", ["int8", "half", None])
def test_an_unknown_dtype(name):
    with pytest.raises(InputError, match=r"unknown dtype .*; choose one of float32, float64"):
        pick_dtype(name)
