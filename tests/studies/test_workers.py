"""What Ray workers ask for on machines of every kind, and what happens when they die."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from small_study import stripped

from mlmjoint.errors import InputError
from mlmjoint.studies import workers
from mlmjoint.studies.measure import Job
from mlmjoint.studies.plan import Plan
from mlmjoint.studies.study import study
from mlmjoint.studies.workers import MOST_DEATHS, RayEngine, device_name

GPU_NODE, SMALL_GPU_NODE = {"CPU": 32, "GPU": 4}, {"CPU": 4, "GPU": 1}


def share_of(machines, count=None, dead=()):
    """What an actor asks for on a cluster of these machines, and how many actors there are."""
    nodes = [{"Resources": m, "Alive": m not in dead} for m in machines]
    ray = SimpleNamespace(nodes=lambda: nodes, remote=lambda **share: lambda worker: share)
    share, started = RayEngine(count)._worker_class(ray)
    return {key: value for key, value in share.items() if key.startswith("num_")}, started


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


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, started once; a study starts its own in tests/test_lifeline.py."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


@pytest.mark.slow
def test_ray_gives_the_same_records_though_a_worker_is_killed(
    cluster, tiny_model, text, whole, tmp_path
):
    engine, killed, data = RayEngine(workers=2), [], f"text:{text}"

    def kill_one(record):
        if not killed:  # with its first record it has got another pair
            killed.append(engine.pids[0])
            os.kill(engine.pids[0], signal.SIGKILL)

    out = tmp_path / "ray"
    done = study(str(tiny_model), data, out, engine=engine, on_record=kill_one)
    assert killed and len(engine.pids) > 2  # another took its place
    by_index = sorted(stripped(out), key=lambda record: record["index"])
    assert by_index == stripped(whole.folder)
    (environment,) = done.manifest["environments"]
    assert (environment["engine"], environment["device"]) == ("ray", "cpu")  # not "auto"
    assert "ray" in environment["versions"]


class Mortal:
    """A worker that no pair leaves alive, or one with other weights than ours."""

    def __init__(self, plan, truth):
        self.dies = plan.seed

    def measure(self, job):
        if self.dies:
            os._exit(1)
        return {}, 1, "cpu", "another"


@pytest.mark.slow
def test_a_worker_that_keeps_dying_and_one_with_other_weights_end_the_study(
    cluster, mlm, monkeypatch
):
    monkeypatch.setattr(workers, "Worker", Mortal)
    jobs = [Job(k, name, (), (1, 2)) for k, name in enumerate("xy")]
    for seed, line in ((1, f"{MOST_DEATHS} workers died"), (0, "other weights of")):
        with pytest.raises(InputError, match=line):
            list(RayEngine(workers=1).run(jobs, mlm, Plan("tiny", "toy", seed=seed)))
