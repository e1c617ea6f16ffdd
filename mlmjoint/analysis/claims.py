"""The paper's claims, each put to a stored study: a verdict by a stated rule, and a sentence.

A claim is one or several paired tests over examples, turned so that a positive number speaks for
it. It is

* **confirmed** if every test has a positive mean and is significant,
* **denied** if a test has a negative mean and is significant,
* **not decided at this n** otherwise.

Significant is a test with Holm's p below 0.05 and an interval that leaves zero out; one without an
interval, for want of spread or finite numbers, decides nothing.

A mean below 1e-5 nats either way decides nothing, however small its p: AG is solved to that.
Holm's correction is over the tests of one claim in one study. Intervals are 95 % each, uncorrected.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import InputError
from ..names import PAPER, label
from ..studies import plan as results
from ..studies.records import Study
from . import stats
from . import summary as report
from .stats import Comparison, slope
from .summary import HEADINGS
from .table import Entry, Sheet

RESOLUTION = 1e-5  # nats; the tolerance AG is solved to
CONFIRMED, DENIED, OPEN = "confirmed", "denied", "not decided at this n"
CORPORA = {"snli-dev": "SNLI dev", "snli": "SNLI", "xsum": "XSUM"}
NATS = {**report.NATS, "kl_true": "KL"}


@dataclass(frozen=True)
class Claim:
    """A statement about one study, what was found, and the numbers it was found from."""

    text: str
    study: str
    n: int
    verdict: str
    tests: tuple[Comparison, ...]
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.study} (n = {self.n}). {self.text}: {self.verdict}. {self.reason}"

    @property
    def decisive(self) -> Comparison:
        """The test that speaks least for the claim: the lowest mean of those lost, else of those
        not passed, else of all."""
        return _weakest(self.tests)


def title(study: Study) -> str:
    """How pages name a study: "en-small, SNLI dev, random"; an unknown one by its folder."""
    for groups in results.GROUPS.values():
        for cells in groups.values():
            for cell in cells:
                if cell.name == study.name:
                    corpus = CORPORA.get(cell.data, cell.data)
                    parts = [cell.model] if corpus == cell.model else [cell.model, corpus]
                    return ", ".join([*parts, cell.pairs])
    return study.name


def finished(studies: Iterable[Study]) -> list[Study]:
    """Those with enough pairs for a test, in their order."""
    held = [study for study in studies if len(study.records) > 1]
    if not held:
        raise InputError("no study has two finished pairs yet; run one with `mlmjoint study`")
    return held


def column(study: Study, name: str, metric: str) -> np.ndarray:
    """One metric of a construction over the examples, (n,); refused where it was not measured."""
    values = study.values(name, metric)
    if not values or any(value is None for value in values):
        raise InputError(f"{study.folder} has no {metric} of {name!r}; choose another study")
    return np.asarray(values, dtype=float)


def gaps(study: Study, metric: str, first: str, second: str) -> np.ndarray:
    """First minus second over the examples, (n,); NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return column(study, first, metric) - column(study, second, metric)


def compare(study: Study, metric: str, pairs: Sequence[tuple[str, str]], seed=0):
    """A paired test of each (first, second) on the same examples, Holm's correction over all."""
    found = []
    for first, second in pairs:
        d = gaps(study, metric, first, second)
        found.append((stats.bootstrap(d, seed=seed), stats.sign_flip(d, seed)))
    corrected = stats.holm([p for _, p in found])
    return tuple(
        Comparison(*pair, interval, p, p_holm)
        for pair, (interval, p), p_holm in zip(pairs, found, corrected, strict=True)
    )


def decide(tests: Sequence[Comparison]) -> str:
    """The rule at the head of this module."""
    if any(map(_failed, tests)):
        return DENIED
    return CONFIRMED if tests and all(map(_passed, tests)) else OPEN


def _passed(test: Comparison) -> bool:
    return test.significant and test.difference.value > RESOLUTION


def _failed(test: Comparison) -> bool:
    return test.significant and test.difference.value < -RESOLUTION


def _weakest(tests: Sequence[Comparison]) -> Comparison:
    lost = [t for t in tests if _failed(t)]
    left = lost or [t for t in tests if not _passed(t)] or tests
    # ∞ − ∞ says less than any number.
    return min(left, key=lambda t: (math.isnan(t.difference.value), t.difference.value))


def best(study: Study, metric: str = "p_nll", method: str = "ag", rivals=PAPER, seed=0) -> Claim:
    """Is a construction the best of the paper's five in a metric?

    Best is: a lower mean than each other, and each difference significant. It is denied as soon as
    one of the others is significantly lower.
    """
    rivals = [name for name in rivals if name != method and name in study.methods]
    if not rivals:
        raise InputError(f"{study.folder} has nothing to compare {method!r} with; choose another")
    tests = compare(study, metric, [(name, method) for name in rivals], seed)
    verdict = decide(tests)
    weakest = _weakest(tests)
    short, own = HEADINGS[metric], label(method)
    if verdict == DENIED:
        better = [t for t in tests if _failed(t)]
        those = _list(label(t.first) for t in better)
        reason = f"{those} {'is' if len(better) == 1 else 'are'} significantly lower. "
    elif verdict == CONFIRMED:
        reason = f"It is significantly lower than each of the other {len(tests)}. "
    else:
        lowest = own if weakest.difference.value >= 0 else label(weakest.first)
        rest = _list(label(t.first) for t in tests if not _passed(t))
        reason = f"{lowest} has the lowest mean, but {own} is not told apart from {rest}. "
        if math.isnan(weakest.difference.value):
            reason = f"{own} is not told apart from {rest}. "
    reason += f"{label(weakest.first)} − {own}: {_numbers(weakest, metric, len(tests))}."
    text = f"{own} is best of the paper's constructions in {short}"
    return Claim(text, title(study), len(study.records), verdict, tests, reason)


def beats_own(study: Study, method: str = "ag", seed: int = 0) -> Claim:
    """Do a joint's conditionals predict gold tokens better than the MLM's own do?"""
    tests = compare(study, "u_nll", [("unary", method)], seed)
    d = gaps(study, "u_nll", "unary", method)
    reason = (
        f"MLM's own − {label(method)}: {_numbers(tests[0], 'u_nll', 1)}; "
        f"{label(method)} is lower in {np.mean(d > 0):.0%} of the pairs."
    )
    text = f"{label(method)}'s conditionals beat the MLM's own in U-PPL"
    return Claim(text, title(study), len(study.records), decide(tests), tests, reason)


def worse_than_mlm(study: Study, method: str = "mrf", metric: str = "p_nll", seed=0) -> Claim:
    """Is a construction worse than taking the two positions to be independent?"""
    tests = compare(study, metric, [(method, "mlm")], seed)
    reason = f"{label(method)} − MLM: {_numbers(tests[0], metric, 1)}."
    text = f"{label(method)} is worse than the plain MLM in {HEADINGS[metric]}"
    return Claim(text, title(study), len(study.records), decide(tests), tests, reason)


def shrinks(study: Study, method: str = "ag", by: str = "distance", seed: int = 0) -> Claim | None:
    """Does the gain over the MLM in P-NLL shrink with distance? None where all pairs are as far.

    The test is the slope of the gain on the logarithm of the distance, over all pairs and without
    bins: what is lost with each doubling.
    """
    held = [record.get(by) for record in study.records]
    if None in held or len(set(held)) < 2:
        return None
    gain = gaps(study, "p_nll", "mlm", method)
    # ∞ − ∞ is as little a number as ∞ or −∞, which have no slope.
    found = slope(np.log2(held), np.where(np.isfinite(gain), gain, np.inf), seed)
    lost = stats.Interval(-found.interval.value, -found.interval.high, -found.interval.low)
    tests = (Comparison("loss per doubling", "", lost, found.p, found.p),)
    what = "token distance" if by == "distance" else "distance in the tree"
    reason = f"Each doubling of the {what} costs {_numbers(tests[0], 'p_nll', 1)}."
    text = f"{label(method)}'s gain over the MLM shrinks with {what}"
    return Claim(text, title(study), found.n, decide(tests), tests, reason)


def claims(study: Study, seed: int = 0) -> list[Claim]:
    """Every claim of the paper that the study can answer, in the paper's order."""
    made = [best(study, metric, seed=seed) for metric in ("p_nll", "u_nll")]
    made.append(beats_own(study, seed=seed))
    made += [worse_than_mlm(study, method, seed=seed) for method in ("mrf", "mrf-l")]
    made.append(shrinks(study, seed=seed))
    return [claim for claim in made if claim is not None]


def changes(study: Study, seed: int = 0) -> list[tuple[Claim, Claim]]:
    """Claims whose verdict at half the pairs is another than at all of them, both ways."""
    half = replace(study, records=study.records[: len(study.records) // 2])
    then = {claim.text: claim for claim in claims(half, seed)}
    both = [(then[now.text], now) for now in claims(study, seed) if now.text in then]
    return [(early, now) for early, now in both if early.verdict != now.verdict]


def sometimes(made: Sequence[Claim], where: str = "All studies") -> Claim:
    """One-test claims of several studies as one: does it hold in at least one of them?

    Holm's correction is then over the studies: with enough of them one would succeed by chance. It
    is denied only if every study denies it.
    """
    tests = [claim.tests[0] for claim in made]
    corrected = stats.holm([t.p for t in tests])
    tests = tuple(t._replace(p_holm=p) for t, p in zip(tests, corrected, strict=True))
    yes = [claim.study for claim, t in zip(made, tests, strict=True) if _passed(t)]
    no = [t for t in tests if _failed(t)]
    verdict = CONFIRMED if yes else DENIED if len(no) == len(tests) else OPEN
    held = f" ({'; '.join(yes)})" if yes else ""
    reason = (
        f"Yes in {len(yes)} of {len(tests)} studies{held}, the reverse in {len(no)}, "
        f"by Holm's p over the {len(tests)}."
    )
    n = sum(claim.n for claim in made)
    return Claim(f"Sometimes {made[0].text}", where, n, verdict, tests, reason)


class Sentences:
    """Claims as a notebook shows them: a list on a page, lines in a terminal."""

    def __init__(self, made: Sequence[Claim]):
        self.claims = list(made)

    def __repr__(self) -> str:
        return "\n".join(
            textwrap.fill(claim.sentence, 88, initial_indent="- ", subsequent_indent="  ")
            for claim in self.claims
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        items = "".join(f"<li>{_item(claim)}</li>\n" for claim in self.claims)
        return {"text/html": f'<ul class="claims">\n{items}</ul>', "text/plain": repr(self)}


def _item(claim: Claim) -> str:
    study, text, verdict, reason = map(
        html.escape, (claim.study, claim.text, claim.verdict, claim.reason)
    )
    return f"{study} (n = {claim.n}). {text}: <strong>{verdict}</strong>. {reason}"


def tally(made: Sequence[Claim]) -> Sheet:
    """How often each claim was confirmed, denied, or left open, over the studies it was put to."""
    rows: dict[str, list[int]] = {}
    for claim in made:
        counts = rows.setdefault(claim.text, [0, 0, 0])
        counts[(CONFIRMED, DENIED, OPEN).index(claim.verdict)] += 1
    return Sheet(
        "Verdicts over the studies",
        ["claim", CONFIRMED, DENIED, "not decided"],
        [[text, *map(Entry, counts)] for text, counts in rows.items()],
    )


def grid(made: Sequence[Claim]) -> Sheet:
    """Verdicts at a glance: a row for each study, a column for each claim."""
    texts = list(dict.fromkeys(claim.text for claim in made))
    held: dict[str, dict[str, str]] = {}
    for claim in made:
        held.setdefault(claim.study, {})[claim.text] = claim.verdict.removesuffix(" at this n")
    rows = [[study, *(verdicts.get(text) for text in texts)] for study, verdicts in held.items()]
    return Sheet("Verdicts, study by study", ["study", *texts], rows)


def verdict_sheet(made: Sequence[Claim], heading: str, unit: str = "nats per token") -> Sheet:
    """Claims side by side: their verdicts and the test that speaks least for each."""
    rows = []
    for claim in made:
        test = claim.decisive
        against = " − ".join(map(label, filter(None, (test.first, test.second))))
        difference = Entry(*test.difference, kind="difference")
        p = Entry(test.p_holm, kind="p")
        verdict = claim.verdict.removesuffix(" at this n")
        rows.append([claim.study, verdict, against, difference, p, Entry(claim.n)])
    columns = ["study", "verdict", "weakest test", "difference", "p (Holm)", "n"]
    return Sheet(f"{heading}? ({unit})", columns, rows)


def _numbers(test: Comparison, metric: str, count: int) -> str:
    """+0.014 [+0.006, +0.023] nats of P-NLL, p = 0.026 (Holm over 4 tests)."""
    entry = Entry(*test.difference, kind="difference")
    text = f"{' '.join(entry.parts(3))} nats of {NATS[metric]}"
    if math.isnan(test.p_holm):
        return f"{text}, no test for want of spread or finite numbers"
    p = Entry(test.p_holm, kind="p").parts()[0]
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    text += f", {p}" + (f" (Holm over {count} tests)" if count > 1 else "")
    return text + ", no interval and so no verdict" * math.isnan(test.difference.low)


def _list(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
