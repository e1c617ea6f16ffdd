"""What Ray workers ask for on machines of every kind, and what happens when they die."""

import os
import signal
import time
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from small_study import mlm, stripped, text, whole  # noqa: F401

from mlmjoint.errors import InputError
from mlmjoint.studies.measure import Job
from mlmjoint.studies.study import study
from mlmjoint.studies.workers import MOST_DEATHS, RayEngine, device_name


def cluster(*machines: dict, dead: tuple = ()):
    """A stand-in for ray that hands back what an actor asks for."""
    nodes = [{"Resources": m, "Alive": True} for m in machines]
    nodes += [{"Resources": m, "Alive": False} for m in dead]
    return SimpleNamespace(nodes=lambda: nodes, remote=lambda **share: lambda worker: share)


GPU_NODE, SMALL_GPU_NODE = {"CPU": 32, "GPU": 4}, {"CPU": 4, "GPU": 1}


@pytest.mark.parametrize(
    "machines, workers, expected, started",
    [
        # the cluster of a Slurm job: as many workers as GPUs, and all of them fit
        ((GPU_NODE, GPU_NODE), None, {"num_gpus": 1.0, "num_cpus": 8}, 8),
        ((GPU_NODE, GPU_NODE), 1, {"num_gpus": 1.0, "num_cpus": 8}, 1),
        ((GPU_NODE, GPU_NODE), 16, {"num_gpus": 0.5, "num_cpus": 4}, 16),
        # the cluster of a cloud: a head without a GPU and many small machines
        (({"CPU": 8}, *[SMALL_GPU_NODE] * 4), None, {"num_gpus": 1.0, "num_cpus": 4}, 4),
        # no GPU anywhere
        (({"CPU": 8}, {"CPU": 8}), None, {"num_cpus": 2}, 8),
        (({"CPU": 8}, {"CPU": 8}), 1, {"num_cpus": 8}, 1),
        (({"CPU": 2},), 4, {"num_cpus": 1}, 4),
    ],
)
def test_a_worker_asks_for_what_one_machine_has(machines, workers, expected, started):
    share, count = RayEngine(workers)._worker_class(cluster(*machines))
    assert share == expected and count == started


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize(
    "machines",
    [
        (GPU_NODE, GPU_NODE),
        ({"CPU": 64}, SMALL_GPU_NODE, SMALL_GPU_NODE),
        (GPU_NODE, SMALL_GPU_NODE),
        ({"CPU": 16}, {"CPU": 2}),
        ({"CPU": 1},),
    ],
)
def test_at_least_one_worker_always_finds_its_place(machines, workers):
    share, _ = RayEngine(workers)._worker_class(cluster(*machines))
    assert any(
        m.get("CPU", 0) >= share["num_cpus"] and m.get("GPU", 0) >= share.get("num_gpus", 0)
        for m in machines
    )


def test_machines_that_left_the_cluster_do_not_count():
    share, count = RayEngine()._worker_class(cluster({"CPU": 4}, dead=(GPU_NODE,)))
    assert share == {"num_cpus": 2} and count == 2


def test_what_the_workers_run_on_is_kept():
    engine, mlm = RayEngine(), SimpleNamespace(fingerprint="f", name="tiny")
    for pid, device in enumerate(["NVIDIA A100", "NVIDIA A100", "cpu"]):
        engine._check({"pid": pid, "fingerprint": "f", "device": device}, mlm)
    assert engine.pids == [0, 1, 2] and engine.devices == ["NVIDIA A100", "cpu"]


def test_a_gpu_goes_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {device.index}")
    names = [device_name(SimpleNamespace(device=torch.device(d))) for d in ("cuda:1", "cpu", "mps")]
    assert names == ["NVIDIA 1", "cpu", "mps"]


class MortalRay:
    """A stand-in for ray, one call at a time, whose calls die as ``fate`` says: one letter each,
    "." for a call that lives, "a" for an actor that is gone, "m" for one the memory monitor took.
    """

    class exceptions:
        RayError = type("RayError", (Exception,), {})
        RayActorError = type("RayActorError", (RayError,), {})
        RayTaskError = type("RayTaskError", (RayError,), {})
        OutOfMemoryError = type("OutOfMemoryError", (RayError,), {})

    def __init__(self, fate: str):
        self.fate, self.calls = iter(fate), 0

    def nodes(self):
        return [{"Resources": {"CPU": 2}, "Alive": True}]

    def remote(self, **share):
        loaded = {"pid": 1, "fingerprint": "f", "device": "cpu"}
        load = SimpleNamespace(remote=lambda *arguments: self._call(loaded))
        measure = SimpleNamespace(remote=lambda job: self._call({"of": job}))
        actor = SimpleNamespace(load=load, measure=measure)
        return lambda worker: SimpleNamespace(remote=lambda: actor)

    def _call(self, answer: dict):
        self.calls += 1
        return self.calls, next(self.fate, "."), tuple(answer.items())

    def wait(self, futures, num_returns):
        return futures[:1], futures[1:]

    def get(self, future):
        _, fate, answer = future
        if fate in "am":
            both = self.exceptions.RayActorError, self.exceptions.OutOfMemoryError
            raise both["am".index(fate)]
        return dict(answer)

    def kill(self, worker):
        pass


def done(fate: str, sentences: str = "xy") -> tuple[str, RayEngine]:
    """The sentences that were measured, in order, and the engine."""
    engine, mlm = RayEngine(), SimpleNamespace(fingerprint="f", name="tiny")
    jobs = deque(Job(k, name, (), (1, 2)) for k, name in enumerate(sentences))
    found = engine._run(MortalRay(fate), jobs, (), mlm)
    return "".join(record["of"].sentence for record in found), engine


@pytest.mark.parametrize("death", "am")
def test_the_pair_of_a_dead_worker_is_redone(death):
    found, engine = done(f".{death}{death}{death}...{death}")
    assert found == "xy" and [job.sentence for job in engine.redone] == ["x"]
    with pytest.raises(InputError, match=f"{MOST_DEATHS} workers died over sentence x"):
        done(f".{death}" * MOST_DEATHS)


def test_deaths_while_loading_count_in_a_row():
    """A machine that is taken away now and then is no model that does not fit."""
    assert done("aa." + ".".join(["aaa."] * 4), "vwxyz")[0] == "vwxyz"
    with pytest.raises(InputError, match=f"{MOST_DEATHS} workers died while loading"):
        done("a" * MOST_DEATHS)


@pytest.mark.slow
def test_ray_gives_the_same_records_though_a_worker_is_killed(tiny_model, text, whole, tmp_path):
    pytest.importorskip("ray")
    engine, killed = RayEngine(workers=2), []

    def kill_one(record):
        if len(engine.pids) < 2:
            time.sleep(1)  # one worker may be ready long before the other
        if not killed and len(engine.pids) == 2:
            killed.append(engine.pids[1])
            os.kill(engine.pids[1], signal.SIGKILL)

    out = tmp_path / "ray"
    done = study(str(tiny_model), f"text:{text}", out, engine=engine, on_record=kill_one)
    assert killed and engine.redone
    by_index = sorted(stripped(out), key=lambda record: record["index"])
    assert by_index == stripped(whole.folder)
    assert done.manifest["environments"][0]["engine"] == "ray"
    assert "ray" in done.manifest["environments"][0]["versions"]
    assert [e["device"] for e in done.manifest["environments"]] == ["cpu"]  # not "auto"
