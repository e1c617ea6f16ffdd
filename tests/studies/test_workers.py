"""What Ray workers ask for on machines of every kind, and what happens when they die."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from small_study import stripped

from mlmjoint.errors import InputError
from mlmjoint.studies import workers
from mlmjoint.studies.measure import Job
from mlmjoint.studies.study import study
from mlmjoint.studies.workers import MOST_DEATHS, RayEngine, device_name

GPU_NODE, SMALL_GPU_NODE = {"CPU": 32, "GPU": 4}, {"CPU": 4, "GPU": 1}


def share_of(machines, count=None, dead=()):
    """What an actor asks for on a cluster of these machines, and how many actors there are."""
    nodes = [{"Resources": m, "Alive": m not in dead} for m in machines]
    ray = SimpleNamespace(nodes=lambda: nodes, remote=lambda **share: lambda worker: share)
    return RayEngine(count)._worker_class(ray)


@pytest.mark.parametrize(
    "machines, count, expected, started",
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
def test_a_worker_asks_for_what_one_machine_has(machines, count, expected, started):
    assert share_of(machines, count) == (expected, started)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 40])
def test_at_least_one_worker_always_finds_its_place(count):
    for machines in (
        (GPU_NODE, SMALL_GPU_NODE),
        ({"CPU": 64}, SMALL_GPU_NODE, SMALL_GPU_NODE),
        ({"CPU": 16}, {"CPU": 2}),
        ({"CPU": 1},),
    ):
        share, _ = share_of(machines, count)
        asked = share["num_cpus"], share.get("num_gpus", 0)
        assert any(m["CPU"] >= asked[0] and m.get("GPU", 0) >= asked[1] for m in machines)


def test_machines_that_left_the_cluster_do_not_count():
    assert share_of(({"CPU": 4}, GPU_NODE), dead=[GPU_NODE]) == ({"num_cpus": 2}, 2)


def test_a_gpu_goes_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {device.index}")
    names = [device_name(SimpleNamespace(device=torch.device(d))) for d in ("cuda:1", "cpu", "mps")]
    assert names == ["NVIDIA 1", "cpu", "mps"]


class MortalRay:
    """A stand-in for ray, one call at a time, whose calls die as ``fate`` says: one letter each,
    "." for a call that lives, "a" for an actor that is gone, "m" for one the memory monitor took.
    """

    class exceptions:
        RayTaskError = type("RayTaskError", (Exception,), {})
        RayActorError = type("RayActorError", (Exception,), {})
        OutOfMemoryError = type("OutOfMemoryError", (Exception,), {})

    def __init__(self, fate: str):
        self.fate, self.calls = iter(fate), 0

    def nodes(self):
        return [{"Resources": {"CPU": 2}, "Alive": True}]

    def remote(self, **share):
        load = SimpleNamespace(remote=lambda *_: self._call((self.calls, "cpu", "f")))
        measure = SimpleNamespace(remote=lambda job: self._call(job.sentence))
        actor = SimpleNamespace(load=load, measure=measure)
        return lambda worker: SimpleNamespace(remote=lambda: actor)

    def _call(self, answer):
        self.calls += 1
        return self.calls, next(self.fate, "."), answer

    def wait(self, futures, num_returns):
        return futures[:1], futures[1:]

    def get(self, future):
        _, fate, answer = future
        if fate != ".":
            raise {"a": self.exceptions.RayActorError, "m": self.exceptions.OutOfMemoryError}[fate]
        return answer

    def kill(self, worker):
        pass


@pytest.fixture
def done(monkeypatch):
    """The sentences that were measured, in order, and the engine, for a fate of its calls."""

    def run(fate: str, sentences: str = "xy", fingerprint: str = "f"):
        monkeypatch.setattr(workers, "_connect", lambda: (MortalRay(fate), False))
        engine, mlm = RayEngine(), SimpleNamespace(fingerprint=fingerprint, name="tiny")
        jobs = [Job(k, name, (), (1, 2)) for k, name in enumerate(sentences)]
        return "".join(engine.run(jobs, mlm, None)), engine

    return run


@pytest.mark.parametrize("death", "am")
def test_the_pair_of_a_dead_worker_is_redone(death, done):
    measured, engine = done(f".{death}{death}{death}...{death}")
    assert measured == "xy" and [job.sentence for job in engine.redone] == ["x"]
    assert engine.devices == ["cpu"] and len(engine.pids) > 1
    with pytest.raises(InputError, match=f"{MOST_DEATHS} workers died over sentence x"):
        done(f".{death}" * MOST_DEATHS)


def test_deaths_while_loading_count_in_a_row(done):
    """A machine that is taken away now and then does not mean that the model does not fit."""
    assert done("aa." + ".".join(["aaa."] * 4), "vwxyz")[0] == "vwxyz"
    with pytest.raises(InputError, match=f"{MOST_DEATHS} workers died while loading"):
        done("a" * MOST_DEATHS)


def test_a_worker_with_other_weights_is_refused(done):
    with pytest.raises(InputError, match="a worker loaded other weights of tiny"):
        done("", fingerprint="another")


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
    (environment,) = done.manifest["environments"]
    assert (environment["engine"], environment["device"]) == ("ray", "cpu")  # not "auto"
    assert "ray" in environment["versions"]
