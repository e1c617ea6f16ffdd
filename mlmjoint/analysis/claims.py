"""The paper's claims, each tested on a stored study: a verdict by a stated rule, and a sentence.

A claim is one or more paired tests over examples, with signs chosen so that a positive number
supports it. It is

* **confirmed** if every test has a positive mean and is significant,
* **denied** if a test has a negative mean and is significant,
* **not decided at this n** otherwise.

A test is significant if Holm's p is below 0.05 and its interval excludes zero; a test without an
interval, because the differences are constant or not finite, decides nothing.

A mean within 1e-5 nats of zero decides nothing, however small its p: AG is solved to that.
Holm's correction is over the tests of one claim in one study. Intervals are 95 % each, uncorrected.
"""

import html
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import InputError
from ..names import PAPER, UNARY, label
from ..studies.records import Study
from .columns import HEADINGS, NATS, column, compare, finished, gains, title
from .stats import Comparison, Interval, slope, with_holm
from .table import Entry, Sheet, Shown

RESOLUTION = 1e-5  # nats; the tolerance AG is solved to
CONFIRMED, DENIED, OPEN = "confirmed", "denied", "not decided at this n"


@dataclass(frozen=True)
class Claim:
    """A statement about one study, its verdict, and the tests behind it."""

    text: str
    study: str
    n: int
    verdict: str
    tests: Sequence[Comparison]
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.study} (n = {self.n}). {self.text}: {self.verdict}. {self.reason}"

    @property
    def short_verdict(self) -> str:
        return self.verdict.removesuffix(" at this n")


def sign(test: Comparison) -> int:
    """1 if a test supports a claim, -1 if it speaks against it, 0 if it decides nothing."""
    decided = test.significant and abs(test.interval.value) > RESOLUTION
    return int(np.sign(test.interval.value)) if decided else 0


def decide(tests: Sequence[Comparison]) -> str:
    """The verdict by the rule at the head of this module."""
    least = min(map(sign, tests), default=0)
    return {1: CONFIRMED, 0: OPEN, -1: DENIED}[least]


def decisive(tests: Sequence[Comparison]) -> Comparison:
    """The test that supports a claim least: the lowest mean of those that deny it, else of those
    that do not confirm it, else of all."""
    # ∞ − ∞ says less than any number.
    return min(tests, key=lambda t: (sign(t), math.isnan(t.interval.value), t.interval.value))


def _claim(study: Study, text: str, tests: Sequence[Comparison], reason: str) -> Claim:
    return Claim(text, title(study), len(study.records), decide(tests), tests, reason)


def best(study: Study, metric: str = "p_nll", method: str = "ag", rivals=PAPER, seed=0) -> Claim:
    """Is a construction the best of the paper's five in a metric?

    Best means a lower mean than each other one, with each difference significant. The claim is
    denied as soon as one of the others is significantly lower.
    """
    rivals = [name for name in rivals if name != method and name in study.methods]
    tests = compare(study, metric, [(name, method) for name in rivals], seed)
    weakest, own = decisive(tests), label(method)
    better = [label(t.first) for t in tests if sign(t) < 0]
    rest = [label(t.first) for t in tests if sign(t) < 1]
    if better:
        reason = f"{_list(better)} {'is' if len(better) == 1 else 'are'} significantly lower. "
    elif not rest:
        reason = f"It is significantly lower than each of the other {len(tests)}. "
    else:
        reason = f"{own} cannot be distinguished from {_list(rest)}. "
        if not math.isnan(weakest.interval.value):
            lowest = own if weakest.interval.value >= 0 else label(weakest.first)
            reason = f"{lowest} has the lowest mean, but {reason}"
    text = f"{own} is best of the paper's constructions in {HEADINGS[metric]}"
    return _claim(study, text, tests, f"{reason}{_numbers(weakest, metric, len(tests))}.")


def beats_own(study: Study, method: str = "ag", seed: int = 0) -> Claim:
    """Do a joint's conditionals predict gold tokens better than the MLM's own do?"""
    tests, name = compare(study, "u_nll", [(UNARY, method)], seed), label(method)
    share = np.mean(column(study, UNARY, "u_nll") > column(study, method, "u_nll"))
    reason = f"{_numbers(tests[0], 'u_nll')}; {name} is lower in {share:.0%} of the pairs."
    return _claim(study, f"{name}'s conditionals beat the MLM's own in U-PPL", tests, reason)


def worse_than_mlm(study: Study, method: str = "mrf", metric: str = "p_nll", seed=0) -> Claim:
    """Is a construction worse than treating the two positions as independent?"""
    tests = compare(study, metric, [(method, "mlm")], seed)
    text = f"{label(method)} is worse than the plain MLM in {HEADINGS[metric]}"
    return _claim(study, text, tests, f"{_numbers(tests[0], metric)}.")


def shrinks(study: Study, method: str = "ag", by: str = "distance", seed: int = 0) -> Claim | None:
    """Does the gain over the MLM in P-NLL shrink with distance? None if all distances are equal.

    The test is the slope of the gain on the logarithm of the distance, over all pairs and without
    bins: what is lost with each doubling.
    """
    distances = [record.get(by) for record in study.records]
    if None in distances or len(set(distances)) < 2:
        return None
    trend = slope(np.log2(distances), gains(study, method), seed)
    value, low, high = trend.interval
    lost = trend._replace(first="loss per doubling", interval=Interval(-value, -high, -low))
    what = "token distance" if by == "distance" else "distance in the tree"
    reason = f"Each doubling of the {what} costs {_amount(lost, 'p_nll')}."
    return _claim(study, f"{label(method)}'s gain over the MLM shrinks with {what}", [lost], reason)


def claims(study: Study, seed: int = 0) -> list[Claim]:
    """Every claim of the paper that the study can answer, in the paper's order."""
    own = [best(study, metric, seed=seed) for metric in ("p_nll", "u_nll")]
    own.append(beats_own(study, seed=seed))
    own += [worse_than_mlm(study, method, seed=seed) for method in ("mrf", "mrf-l")]
    return [claim for claim in (*own, shrinks(study, seed=seed)) if claim]


def verdicts(studies: Sequence[Study], seed: int = 0) -> str:
    """The paper's claims on each study of two pairs or more, one sentence with a verdict each."""
    studies = finished(studies)
    for study in studies:
        if lacking := [name for name in PAPER if name not in study.methods]:
            raise InputError(
                f"{study.folder} has no {', '.join(lacking)}; the paper's claims are about "
                f"{' '.join(PAPER)}: choose a study of these"
            )
    return "\n".join(f"{Sentences(claims(study, seed))!r}\n" for study in studies)


def changes(study: Study, seed: int = 0) -> list[tuple[Claim, Claim]]:
    """Claims whose verdict on half the pairs differs from that on all of them: (half, all)."""
    half = replace(study, records=study.records[: len(study.records) // 2])
    then = {claim.text: claim for claim in claims(half, seed)}
    both = [(then[now.text], now) for now in claims(study, seed) if now.text in then]
    return [(early, now) for early, now in both if early.verdict != now.verdict]


def sometimes(claims: Sequence[Claim], where: str = "All studies") -> Claim:
    """One-test claims of several studies as one: does it hold in at least one of them?

    Holm's correction is then over the studies: with enough of them one would succeed by chance. It
    is denied only if every study denies it.
    """
    tests = with_holm([claim.tests[0] for claim in claims])
    signs = [*map(sign, tests)]
    yes = [claim.study for claim, one in zip(claims, signs, strict=True) if one > 0]
    no = signs.count(-1)
    verdict = CONFIRMED if yes else DENIED if no == len(tests) else OPEN
    those = f" ({'; '.join(yes)})" if yes else ""
    reason = (
        f"Yes in {len(yes)} of {len(tests)} studies{those}, the reverse in {no}, "
        f"by Holm's p over the {len(tests)}."
    )
    n = sum(claim.n for claim in claims)
    return Claim(f"Sometimes {claims[0].text}", where, n, verdict, tests, reason)


class Sentences(Shown):
    """Claims as a notebook shows them: a list on a page, lines in a terminal."""

    def __init__(self, claims: Sequence[Claim]):
        dash = {"initial_indent": "- ", "subsequent_indent": "  "}
        lines = [textwrap.fill(claim.sentence, 88, **dash) for claim in claims]
        item = "<li>{} (n = {}). {}: <strong>{}</strong>. {}</li>\n"
        facts = ((c.study, str(c.n), c.text, c.verdict, c.reason) for c in claims)
        items = "".join(item.format(*map(html.escape, row)) for row in facts)
        page = f'<ul class="claims">\n{items}</ul>'
        super().__init__("\n".join(lines), "text/html", page)


def tally(claims: Sequence[Claim]) -> Sheet:
    """How often each claim was confirmed, denied, or left open, over the studies."""
    found = Counter((claim.text, claim.verdict) for claim in claims)
    texts = dict.fromkeys(claim.text for claim in claims)
    verdicts = (CONFIRMED, DENIED, OPEN)
    rows = [[text, *(Entry(found[text, verdict]) for verdict in verdicts)] for text in texts]
    return Sheet("Verdicts over the studies", ["claim", CONFIRMED, DENIED, "not decided"], rows)


def grid(claims: Sequence[Claim]) -> Sheet:
    """Verdicts at a glance: a row for each study, a column for each claim."""
    found = {(claim.study, claim.text): claim.short_verdict for claim in claims}
    studies, texts = (list(dict.fromkeys(key[k] for key in found)) for k in (0, 1))
    rows = [[study, *(found.get((study, text)) for text in texts)] for study in studies]
    return Sheet("Verdicts, study by study", ["study", *texts], rows)


def verdict_sheet(claims: Sequence[Claim], heading: str, unit: str = "nats per token") -> Sheet:
    """Claims side by side: their verdicts and the test that supports each least."""
    rows = []
    for claim in claims:
        test = decisive(claim.tests)
        numbers = Entry(*test.interval, kind="difference"), Entry(test.p_holm, kind="p")
        rows.append([claim.study, claim.short_verdict, _names(test), *numbers, Entry(claim.n)])
    columns = ["study", "verdict", "weakest test", "difference", "p (Holm)", "n"]
    return Sheet(f"{heading}? ({unit})", columns, rows)


def _names(test: Comparison) -> str:
    return " − ".join(map(label, filter(None, (test.first, test.second))))


def _numbers(test: Comparison, metric: str, count: int = 1) -> str:
    """MLM − AG: +0.014 [+0.006, +0.023] nats of P-NLL, p = 0.026 (Holm over 4 tests)."""
    return f"{_names(test)}: {_amount(test, metric, count)}"


def _amount(test: Comparison, metric: str, count: int = 1) -> str:
    entry = Entry(*test.interval, kind="difference")
    text = f"{' '.join(entry.parts(3))} nats of {NATS[metric]}"
    if math.isnan(test.p_holm):
        return f"{text}, no test: the differences are constant or not finite"
    p = str(Entry(test.p_holm, kind="p"))
    text += f", p {p}" if p.startswith("<") else f", p = {p}"
    text += f" (Holm over {count} tests)" if count > 1 else ""
    return text + ", no interval and so no verdict" * math.isnan(test.interval.low)


def _list(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
