"""Speed of the joints and metrics against the published procedure, side by side in one run.

Random tables with the sharpness of a language model's; the dense baseline's parts are timed once
each per repeat, its forty Arnold-Gokhale steps as a sample of steps times forty. One thread and
process CPU time decide; two threads and wall time stand beside them.
"""

import itertools
import json
import statistics
import time
from functools import partial

import torch

from benchmarks import baseline_joints as dense
from benchmarks.common import finish, parser, row, timed
from mlmjoint.core import arnold_gokhale
from mlmjoint.core import metrics as scores
from mlmjoint.core.joints import ArnoldGokhale
from mlmjoint.core.metrics import metrics
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import sums
from mlmjoint.names import PAPER

STEPS = 40
SAMPLED_STEPS = 4  # of the dense forty: each costs the same
BARS = {"published": 6.0, "metrics": 6.0, "solved": 6.0}
MOST = 1.3  # times the cost of the same call with A-KL, G-KL and JSD alone


def tables(size: int, seed: int = 0) -> Tables:
    """A pair of incompatible tables: a shared low-rank score and noise of each side's own."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, 8, generator=generator) for n in (size, size))
    score = 0.7 * left @ right.T
    noise = torch.randn(size, size, generator=generator)
    logits_a = score + 0.5 * noise + torch.randn(size, 1, generator=generator)
    logits_b = score - 0.5 * noise + torch.randn(1, size, generator=generator)
    log_z_a, log_z_b = logits_a.logsumexp(0), logits_b.logsumexp(1)
    marginals = (torch.randn(size, generator=generator).log_softmax(0) for _ in "ab")
    return Tables(
        logits_a.sub_(log_z_a), logits_b.sub_(log_z_b[:, None]), log_z_a, log_z_b, *marginals,
        gold=(1, 2),
    )  # fmt: skip


def kl_alone(log_p, p, log_q, faint):
    """What took the place of ``_divergences`` when A-KL was the only one."""
    total = sums.total(log_q.sub_(log_p).mul_(p))
    return torch.stack([-sums.LOG_2 * total, torch.zeros_like(total), torch.zeros_like(total)])


def before(t: Tables) -> dict:
    """The metrics without the columns of the ruler and without other divergences."""
    everything = sums._divergences, scores.inconsistency
    sums._divergences, scores.inconsistency = kl_alone, lambda _: {"interaction": 0.0}
    try:
        return metrics(t, PAPER)
    finally:
        sums._divergences, scores.inconsistency = everything


def columns(t: Tables, repeats: int) -> float:
    """How many times the cost of the metrics before they had every column, one thread."""
    torch.set_num_threads(1)
    pairs = [(timed(metrics, t, PAPER)[0], timed(before, t)[0]) for _ in range(repeats)]
    return statistics.median(new / old for new, old in pairs)


def compare(t: Tables, threads: int, repeats: int) -> dict:
    torch.set_num_threads(threads)
    clock = partial(timed, clock=time.process_time if threads == 1 else time.perf_counter)
    solution = arnold_gokhale.solve(t)
    log_mu = ArnoldGokhale(t, solution).log_table()
    vectors = (t.log_z_a, t.log_z_b, t.log_p_a, t.log_p_b)
    rows = {"dense_steps": [], "steps": [], "dense_metrics": [], "metrics": [], "solved": []}
    for _ in range(repeats):
        seconds, few = clock(dense.arnold_gokhale, t.log_a, t.log_b, SAMPLED_STEPS)
        setup, _ = clock(dense.arnold_gokhale, t.log_a, t.log_b, 0)
        rows["dense_steps"].append(setup + (seconds - setup) * STEPS / SAMPLED_STEPS)
        rows["steps"].append(clock(arnold_gokhale.solve, t, 1e-5, "published", STEPS)[0])
        make, tables_of = clock(dense.joints, t.log_a, t.log_b, *vectors, log_mu)
        use, slow = clock(dense.metrics, t.log_a, t.log_b, tables_of, t.gold)
        del tables_of
        rows["dense_metrics"].append(make + use)
        seconds, fast = clock(metrics, t, PAPER)
        rows["solved"].append(seconds)
        rows["metrics"].append(seconds - clock(arnold_gokhale.solve, t)[0])
    check_same(t, few, slow, fast)
    median = {name: statistics.median(values) for name, values in rows.items()}
    whole = median["dense_steps"] + median["dense_metrics"]
    return {
        "seconds": median,
        "published": median["dense_steps"] / median["steps"],
        "metrics": median["dense_metrics"] / median["metrics"],
        "solved": whole / median["solved"],
        "passes": solution.iterations,
        "residual": solution.residual,
    }


def check_same(t: Tables, few, slow: dict, fast) -> None:
    """Both sides must have computed the same thing, or the ratio means nothing."""
    ours = ArnoldGokhale(t, arnold_gokhale.solve(t, solver="published", iterations=SAMPLED_STEPS))
    rows = torch.arange(200)
    gap = float((ours.log_prob(rows, rows) - few[rows, rows].double()).abs().max())
    worst = max(abs(slow[m]["a_kl"] / fast[m]["a_kl"] - 1) for m in PAPER)
    for pair in itertools.combinations(PAPER, 2):
        worst = max(worst, abs(slow["jsd"][pair] - fast["jsd"][pair]))
    if gap > 1e-4 or worst > 1e-2:  # the dense float32 sums are the inexact side
        raise SystemExit(f"the two sides differ: log μ by {gap:.2g}, metrics by {worst:.2g}")


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--size", type=int, default=8000)
    command.add_argument("--repeats", type=int, default=3)
    command.add_argument("--one-thread", action="store_true", help="leave the second column out")
    options = command.parse_args()
    t = tables(options.size)
    one = compare(t, 1, options.repeats)
    print(json.dumps(one), flush=True)
    two = None if options.one_thread else compare(t, 2, max(1, options.repeats // 2))
    works = {
        "published": f"{STEPS} published AG steps, same answer",
        "metrics": "the five joints' metrics and ten JSDs, AG given",
        "solved": "AG to residual 1e-5 and all metrics, against 40 published steps and all metrics",
    }
    rows, missed = [], []
    for name, work in works.items():
        numbers = {"one": one, "two": two} if name == "solved" else {}
        shown = f"{one[name]:.1f}×", f"{two[name]:.1f}×" if two else ""
        rows.append(row(f"{work}, V = {options.size:,}", f"≥ {BARS[name]:g}×", *shown, **numbers))
        missed += [f"{name}: {one[name]:.2f} < {BARS[name]}"] if one[name] < BARS[name] else []
    times = columns(t, options.repeats)
    work = f"the metrics with every column, against A-KL alone, V = {options.size:,}"
    rows.append(row(work, f"≤ {MOST:g}×", f"{times:.2f}×", times=times))
    missed += [f"columns: {times:.2f} > {MOST}"] if times > MOST else []
    return finish("joints", rows, missed, not options.dry)


if __name__ == "__main__":
    raise SystemExit(main())
