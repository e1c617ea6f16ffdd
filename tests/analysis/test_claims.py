"""Verdicts and sentences on studies whose answers are known."""

import math

import pytest
from made_studies import METHODS, made

from mlmjoint.analysis import claims
from mlmjoint.analysis.claims import CONFIRMED, DENIED, OPEN
from mlmjoint.analysis.stats import Comparison, Interval
from mlmjoint.analysis.table import to_html
from mlmjoint.errors import InputError


def comparison(value, p, spread=0.5):
    low, high = sorted(((1 - spread) * value, (1 + spread) * value))
    return Comparison("x", "y", Interval(value, low, high), p, p)


class TestRule:
    @pytest.mark.parametrize(
        "tests, verdict",
        [
            ([(0.1, 0.01), (0.2, 0.04)], CONFIRMED),
            ([(0.1, 0.01), (0.2, 0.06)], OPEN),
            ([(0.1, 0.01), (-0.2, 0.06)], OPEN),
            ([(0.1, 0.01), (-0.2, 0.01)], DENIED),
            ([(0.1, 0.05)], OPEN),
            ([(0.1, math.nan)], OPEN),
            ([(9e-6, 0.001)], OPEN),  # within AG's tolerance
            ([(-9e-6, 0.001)], OPEN),
            ([(2e-5, 0.001)], CONFIRMED),
            ([(0.1, 0.01, 1.1)], OPEN),  # an interval that contains zero
            ([(-0.1, 0.01, math.nan)], OPEN),  # no interval
            ([], OPEN),
        ],
    )
    def test_is_what_the_module_says(self, tests, verdict):
        assert claims.decide([comparison(*test) for test in tests]) == verdict

    def test_a_denial_shows_the_test_that_denies(self):
        tests = wide, lost = comparison(-0.5, 0.6), comparison(-0.1, 0.01)
        assert claims.decide(tests) == DENIED and claims.decisive(tests) == lost != wide

    def test_corrects_over_the_tests_of_the_claim(self):
        tests = claims.best(made(shifts={"ag": -0.03}, n=30)).tests
        assert len(tests) == 4
        assert min(t.p_holm for t in tests) == pytest.approx(4 * min(t.p for t in tests))

    def test_changes_are_what_half_the_pairs_would_have_said(self):
        study = made(n=60)
        for index, record in enumerate(study.records):
            record["methods"]["mrf"]["p_nll"] += 0.5 if index < 30 else -0.5
        found = {then.text: (then, now) for then, now in claims.changes(study)}
        then, now = found["MRF is worse than the plain MLM in P-PPL"]
        assert (then.verdict, then.n, now.verdict, now.n) == (CONFIRMED, 30, OPEN, 60)
        assert "AG's conditionals beat the MLM's own in U-PPL" not in found


class TestBest:
    @pytest.mark.parametrize(
        "shifts, verdict, said, decisive",
        [
            ({"ag": -0.4}, CONFIRMED, "significantly lower than each of the other 4", None),
            ({"ag": -0.2, "hcb": -0.5}, DENIED, "HCB is significantly lower", "hcb"),
            ({"ag": -0.4, "hcb": -0.4}, OPEN, "cannot be distinguished from HCB.", "hcb"),
        ],
    )
    def test_is_confirmed_denied_by_one_better_rival_or_left_open(
        self, shifts, verdict, said, decisive
    ):
        found = claims.best(made(shifts=shifts))
        assert found.verdict == verdict and said in found.sentence
        assert decisive in (None, claims.decisive(found.tests).first)
        assert (claims.decisive(found.tests).interval.low > 0) == (verdict == CONFIRMED)
        # The one that decides is shown with its numbers.
        assert f"{abs(claims.decisive(found.tests).interval.value):.3f}" in found.sentence
        assert "n = 60" in found.sentence and "Holm over 4 tests" in found.sentence

    def test_an_open_verdict_shows_the_test_that_left_it_open(self):
        """HCB is near and distinct; MRF is further off, but scatters too much."""
        study = made(shifts={"ag": -0.4, "hcb": -0.3}, noise=0.001)
        for index, record in enumerate(study.records):
            record["methods"]["mrf"]["p_nll"] += 9 * (-1) ** index
        found = claims.best(study)
        said = "AG has the lowest mean, but AG cannot be distinguished from MRF. MRF − AG"
        assert found.verdict == OPEN and said in found.reason

    def test_joints_the_paper_leaves_out_do_not_count(self):
        study = made(shifts={"ag": -0.4, "chain-geo": -0.9})
        assert claims.best(study).verdict == CONFIRMED
        assert claims.best(study, rivals=METHODS).verdict == DENIED

    def test_infinite_nll_of_all_leaves_every_claim_open(self):
        """∞ − ∞ is not a number: no construction may be said to have the lowest mean."""
        study = made(shifts={"ag": -0.4})
        for row in (study.records[3]["unary"], *study.records[3]["methods"].values()):
            row |= {"p_nll": math.inf, "u_nll": math.inf}
        found = claims.claims(study)
        assert len(found) == 6 and {claim.verdict for claim in found} == {OPEN}
        assert all("no test: the differences" in claim.reason for claim in found)
        said = "AG cannot be distinguished from MLM, MRF, MRF-L and HCB. "
        assert found[0].reason.startswith(said)

    @pytest.mark.parametrize("names", [["ag"], ["mlm"], ["mlm", "ag"]])
    def test_infinite_nll_of_some(self, names):
        """The gain is −∞, ∞ or undefined: none has a slope over distance."""
        study = made(shifts={"ag": -0.4})
        for name in names:
            study.records[3]["methods"][name]["p_nll"] = math.inf
        found = claims.claims(study)
        assert found[0].verdict == found[-1].verdict == OPEN
        assert "no test: the differences" in found[-1].reason
        if names == ["mlm", "ag"]:  # the weakest test is one with numbers
            assert claims.decisive(found[0].tests).interval.value == -math.inf
            assert found[0].reason.startswith("MRF has the lowest mean, but AG cannot")


class TestOtherClaims:
    def test_conditionals_against_the_model_s_own_and_mrf_against_the_plain_model(self):
        assert claims.beats_own(made(shifts={"ag": -0.3})).verdict == CONFIRMED
        assert claims.beats_own(made(shifts={"unary": -0.3})).verdict == DENIED
        assert claims.beats_own(made()).verdict == OPEN
        study = made(noise=0.0, shifts={"mrf": 0.4, "mrf-l": -0.4})
        for record in study.records[:15]:
            record["unary"]["u_nll"] += 0.1
        assert "lower in 25% of the pairs" in claims.beats_own(study).reason
        assert claims.worse_than_mlm(study).verdict == CONFIRMED
        assert claims.worse_than_mlm(study, "mrf-l").verdict == DENIED

    def test_gain_that_shrinks_grows_or_cannot_be_asked(self):
        assert claims.shrinks(made(n=200, shifts={"ag": -0.5})).verdict == CONFIRMED
        assert claims.shrinks(made(n=200, shifts={"ag": 0.5})).verdict == DENIED
        assert claims.shrinks(made(n=200)).verdict == OPEN
        assert claims.shrinks(made(pairs="contiguous")) is None
        assert len(claims.claims(made(pairs="contiguous"))) == 5

    def test_slope_is_per_doubling(self):
        study = made(noise=0.0)
        for record in study.records:
            record["methods"]["ag"]["p_nll"] += 0.1 * math.log2(record["distance"])
        claim = claims.shrinks(study)
        (test,) = claim.tests
        assert test.interval.value == pytest.approx(0.1)
        assert math.isnan(test.interval.low)  # a perfect line has no interval
        assert test.p < 0.001 and claim.verdict == OPEN
        assert claim.reason.endswith(", p < 0.001, no interval and so no verdict.")


class TestSometimes:
    def test_one_study_is_enough_but_not_by_chance(self):
        yes, no = made(shifts={"ag": -0.3}), made(shifts={"unary": -0.3})
        found = claims.sometimes([claims.beats_own(study) for study in (yes, no)])
        assert found.verdict == CONFIRMED
        assert "Yes in 1 of 2 studies" in found.reason and "the reverse in 1" in found.reason
        assert claims.sometimes([claims.beats_own(no)] * 3).verdict == DENIED
        assert claims.sometimes([claims.beats_own(s) for s in (made(), no)]).verdict == OPEN
        one = claims.beats_own(yes)
        many = claims.sometimes([one] + [claims.beats_own(made(seed=k)) for k in range(9)])
        assert many.tests[0].p_holm == pytest.approx(10 * one.tests[0].p)  # over the studies


class TestShown:
    def test_sentences_are_lines_or_a_list(self):
        found = claims.best(made(shifts={"ag": -0.4, "hcb": -0.2}))
        shown = claims.Sentences([found])
        assert " ".join(repr(shown).split()) == f"- {found.sentence}"
        assert "<strong>confirmed</strong>" in shown._repr_mimebundle_()["text/html"]

    def test_sheets_of_verdicts(self):
        names = ("one", "en-small-snli-dev-random")
        some = [claims.best(made(name=name, shifts={"ag": -0.4})) for name in names]
        some.append(claims.beats_own(made(name="one")))
        sheet = claims.verdict_sheet(some[:2], "x")
        assert [row[0] for row in sheet.rows] == ["one", "en-small, SNLI dev, random"]
        assert "p (Holm)" in to_html(sheet)
        (best, own) = claims.tally(some).rows
        assert [entry.value for entry in (*best[1:], *own[1:])] == [2, 0, 0, 0, 0, 1]
        sheet = claims.grid(some)
        assert sheet.columns == ["study", some[0].text, some[2].text]
        assert sheet.rows[0] == ["one", "confirmed", "not decided"]
        assert sheet.rows[1] == ["en-small, SNLI dev, random", "confirmed", None]

    def test_unfinished_studies_are_passed_over_and_missing_metrics_refused(self):
        whole = made()
        assert claims.finished([made(n=1), whole, made(n=0)]) == [whole]
        with pytest.raises(InputError, match="no study"):
            claims.finished([made(n=1)])
        with pytest.raises(InputError, match="no kl_true of 'mlm'; choose another study"):
            claims.best(whole, "kl_true")
