"""Where the pairs of a study are measured: in this process, or by the workers of a Ray cluster."""

import os
from collections.abc import Iterator, Sequence

import torch

from .. import checks
from ..errors import InputError
from ..models.mlm import MLM, load
from ..text.toy_world import ToyTruth
from .measure import Job, Measurer
from .plan import Plan

ENGINES = ("local", "ray")
MOST_DEATHS = 3  # workers that may die over one pair before the study gives up


class LocalEngine:
    """One pair after the other, in the order of the sentences.

    ``devices`` lists, from the first record on, what the pairs are measured on.
    """

    name = "local"

    def __init__(self):
        self.devices: list[str] = []

    def run(self, jobs: Sequence[Job], mlm: MLM, plan: Plan, truth=None) -> Iterator[dict]:
        measure = Measurer(mlm, plan, truth)
        self.devices = [device_name(mlm)]
        for job in jobs:
            yield measure(job)


class RayEngine:
    """Pairs spread over Ray workers, each with a model of its own; a dead worker's pair is redone.

    ``workers`` defaults to one per GPU of the cluster or, if it has none, one per two CPUs. The
    cluster is the one that RAY_ADDRESS names, the one already running here, or a local one started
    for the study. ``pids`` lists the process of every worker that has measured a pair, ``devices``
    what they run on, each once.
    """

    name = "ray"

    def __init__(self, workers: int | None = None):
        if workers is not None and workers < 1:
            raise InputError(f"{workers} workers cannot measure anything; give at least 1")
        self.workers, self.pids, self.devices = workers, [], []

    def run(self, jobs: Sequence[Job], mlm: MLM, plan: Plan, truth=None) -> Iterator[dict]:
        """Yield records in the order they are finished; each worker loads ``plan.model``."""
        ray, started = _connect()
        actors: list = []
        try:
            worker_class, most = self._worker_class(ray)
            actors += [worker_class.remote(plan, truth) for _ in range(min(most, len(jobs)))]
            measure = ray.util.ActorPool(actors).map_unordered(
                lambda w, j: w.measure.remote(j), jobs
            )
            for record, pid, device, fingerprint in measure:
                if fingerprint != mlm.fingerprint:
                    raise InputError(
                        f"a worker loaded other weights of {mlm.name} than this process; give "
                        "every machine the same model folder or revision"
                    )
                self.pids = list(dict.fromkeys([*self.pids, pid]))
                self.devices = list(dict.fromkeys([*self.devices, device]))
                yield record
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
            raise InputError(
                f"{MOST_DEATHS} workers died over one pair; give workers more memory, or a "
                "smaller --batch-size, and start again: the pairs done so far are kept"
            ) from None
        except ray.exceptions.RayTaskError as error:
            # The worker's own one-line error, without Ray's traceback.
            raise (error.cause if isinstance(error.cause, InputError) else error) from None
        finally:
            for actor in actors:
                ray.kill(actor)
            if started:
                ray.shutdown()

    def _worker_class(self, ray):
        """The actor class with its share of the cluster, and how many to start."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus, cpus = (int(sum(m.get(kind, 0) for m in machines)) for kind in ("GPU", "CPU"))
        workers = self.workers or gpus or max(1, cpus // 2)
        # A worker's whole share must be free on one machine, or it waits for ever.
        if gpus:
            gpu = min(1.0, gpus / workers)
            cpu = gpu * min(m.get("CPU", 1) / m["GPU"] for m in machines if m.get("GPU"))
            share = {"num_gpus": gpu, "num_cpus": max(1, int(cpu))}
        else:
            most = int(max(m.get("CPU", 1) for m in machines))
            share = {"num_cpus": max(1, min(cpus // workers, most))}
        again = {"max_restarts": -1, "max_task_retries": MOST_DEATHS - 1}
        return ray.remote(**share, **again)(Worker), workers


class Worker:
    """A Ray worker: loads the model for its first pair, then measures one after the other."""

    def __init__(self, plan: Plan, truth: ToyTruth | None):
        self.plan, self.truth, self.measurer = plan, truth, None

    def measure(self, job: Job) -> tuple[dict, int, str, str]:
        """The record, and by which process, on what device, with which weights."""
        if self.measurer is None:
            mlm = load(self.plan.model, device=self.plan.device, dtype=self.plan.dtype)
            self.measurer = Measurer(mlm, self.plan, self.truth)
        mlm = self.measurer.mlm
        return self.measurer(job), os.getpid(), device_name(mlm), mlm.fingerprint


def device_name(mlm: MLM) -> str:
    """What a model runs on: the name of its GPU, otherwise "cpu" or "mps"."""
    cuda = mlm.device.type == "cuda"
    return torch.cuda.get_device_name(mlm.device) if cuda else str(mlm.device)


def engine_named(engine, workers: int | None = None):
    """An engine by its name; an engine object is returned as it is."""
    if engine == "local":
        if workers is not None:
            raise InputError(f"--workers {workers} needs --engine ray; local has one process")
        return LocalEngine()
    if engine == "ray":
        return RayEngine(workers)
    if isinstance(engine, str):
        checks.one_of("engine", engine, ENGINES)
    return engine


def _connect():
    """Ray, connected, and whether this process started it."""
    # No usage statistics; and workers without a GPU keep all the CPU's threads.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = checks.package("ray", "--engine ray", "mlmjoint[ray]")
    if ray.is_initialized():
        return ray, False
    address = os.environ.get("RAY_ADDRESS")
    here = {} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level="error", **here)
    except Exception as error:
        if not address:
            raise
        what = f"no Ray cluster answers at RAY_ADDRESS={address} ({type(error).__name__})"
        raise InputError(f"{what}; start one or unset RAY_ADDRESS") from None
    return ray, True
