"""Where the pairs of a study are measured: in this process, or by the workers of a Ray cluster."""

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import torch

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
    for the study. ``pids`` lists the process of every worker that was started, ``devices`` what
    they run on, each once, ``redone`` the jobs whose worker died.
    """

    name = "ray"

    def __init__(self, workers: int | None = None):
        if workers is not None and workers < 1:
            raise InputError(f"{workers} workers cannot measure anything; give at least 1")
        self.workers, self.pids, self.devices, self.redone = workers, [], [], []

    def run(self, jobs: Sequence[Job], mlm: MLM, plan: Plan, truth=None) -> Iterator[dict]:
        """Yield records in the order they are finished; each worker loads ``plan.model``."""
        ray, started = _connect()
        pending: dict = {}  # future -> (worker, its job, or None while it loads the model)
        self.devices, deaths, queue, left = [], Counter(), deque(jobs), len(jobs)

        def start() -> None:
            worker = worker_class.remote()
            pending[worker.load.remote(plan, truth)] = worker, None

        try:
            worker_class, most = self._worker_class(ray)
            for _ in range(min(most, left)):
                start()
            while left:
                (future,), _ = ray.wait(list(pending), num_returns=1)
                worker, job = pending.pop(future)
                try:
                    answer = ray.get(future)
                except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
                    deaths[job] += 1
                    if deaths[job] >= MOST_DEATHS:
                        what = f"over sentence {job.sentence}" if job else "while loading the model"
                        raise InputError(
                            f"{MOST_DEATHS} workers died {what}; give workers more memory, or a "
                            "smaller --batch-size, and start again: the pairs done so far are kept"
                        ) from None
                    if job is not None:
                        queue.appendleft(job)
                        self.redone.append(job)
                    start()
                    continue
                except ray.exceptions.RayTaskError as error:
                    # The worker's own one-line error, without Ray's traceback.
                    raise (error.cause if isinstance(error.cause, InputError) else error) from None
                if job is None:
                    deaths[None] = 0  # the model fits into memory
                    self._note(*answer, mlm)
                else:
                    left -= 1
                    yield answer
                if queue:
                    job = queue.popleft()
                    pending[worker.measure.remote(job)] = worker, job
        finally:
            for worker, _ in pending.values():
                ray.kill(worker)
            if started:
                ray.shutdown()

    def _note(self, pid: int, device: str, fingerprint: str, mlm: MLM) -> None:
        self.pids.append(pid)
        self.devices = list(dict.fromkeys([*self.devices, device]))
        if fingerprint != mlm.fingerprint:
            remedy = "give every machine the same model folder or revision"
            raise InputError(
                f"a worker loaded other weights of {mlm.name} than this process; {remedy}"
            )

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
        return ray.remote(**share)(Worker), workers


class Worker:
    """A Ray worker: loads the model once, then measures one job after the other."""

    def load(self, plan: Plan, truth: ToyTruth | None) -> tuple[int, str, str]:
        mlm = load(plan.model, device=plan.device, dtype=plan.dtype)
        self.measure_job = Measurer(mlm, plan, truth)
        return os.getpid(), device_name(mlm), mlm.fingerprint

    def measure(self, job: Job) -> dict:
        return self.measure_job(job)


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
        raise InputError(f"unknown engine {engine!r}; choose one of {', '.join(ENGINES)}")
    return engine


def _connect():
    """Ray, connected, and whether this process started it."""
    # No usage statistics; and workers without a GPU keep all the CPU's threads.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError('--engine ray needs Ray; pip install "mlmjoint[ray]"') from None
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
