"""The pictures of studies show what they are given, read back through matplotlib's objects."""

import numpy as np
import pytest

from mlmjoint import METHODS
from mlmjoint.analysis import Interval
from mlmjoint.figures.studies import (
    cluster_order,
    draw_distance,
    draw_jsd,
    draw_training,
    millis,
    spread,
)
from mlmjoint.names import LABELS


def gains(*values):
    return [(2.0**k, Interval(v, v - 0.1, v + 0.2)) for k, v in enumerate(values)]


class TestDistance:
    def test_each_curve_passes_through_its_means(self):
        figure = draw_distance({"one": {"ag": gains(0.5, 0.3, 0.1)}, "two": {"ag": gains(0.2)}})
        axis = figure.axes[0]
        (container,) = axis.containers
        line, _, (bars,) = container
        assert np.allclose(line.get_ydata(), [0.5, 0.3, 0.1])
        assert np.allclose(line.get_xdata(), [1, 2, 4])
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        assert np.allclose(ends, [[0.4, 0.7], [0.2, 0.5], [0.0, 0.3]])

        figure = draw_distance({"one": {m: gains(0.5, 0.3) for m in ("mrf", "mrf-l", "hcb", "ag")}})
        first = [container[0].get_xdata()[0] for container in figure.axes[0].containers]
        assert len(set(first)) == 4 and max(first) / min(first) < 1.2  # moved apart within a bin

    def test_a_bar_far_longer_than_the_curves_is_cut(self):
        far = [(1.0, Interval(0.1, 0.05, 0.2)), (2.0, Interval(0.05, -9.0, 0.1))]
        low, high = draw_distance({"one": {"ag": far}}).axes[0].get_ylim()
        assert -0.2 < low < 0 and 0.2 < high < 0.3
        low, high = draw_distance({"one": {"ag": gains(0.5, 0.3)}}).axes[0].get_ylim()
        assert low < 0 and high > 0.7

    def test_a_study_without_bins_says_so(self):
        figure = draw_distance({"few": {"ag": []}, "many": {"ag": gains(0.1, 0.2)}})
        assert [text.get_text() for text in figure.axes[0].texts] == ["no bin has enough pairs"]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["AG"]


STEPS = (10, 100, 1000)
ERRORS = {name: (8.0, 2.0 + k, 0.5 / (k + 1)) for k, name in enumerate(METHODS)}
CLASH = [Interval(v, v - 0.05, v + 0.1) for v in (0.1, 0.4, 0.2)]


class TestTraining:
    def test_curves_are_drawn_as_they_are_and_against_the_mlm_with_names_at_their_ends(self):
        figure = draw_training(STEPS, ERRORS, CLASH)
        panels = {axis.get_title(): axis for axis in figure.axes}
        error, share = panels["KL(truth ‖ joint), nats"], panels["the same, divided by that of MLM"]
        for axis, base in ((error, (1, 1, 1)), (share, ERRORS["mlm"])):
            drawn = [line.get_ydata() for line in axis.lines]
            assert np.allclose(drawn, [np.divide(v, base) for v in ERRORS.values()])
            styles = {(line.get_color(), line.get_linestyle()) for line in axis.lines}
            assert len(styles) == len(METHODS)
        ends = {LABELS[n]: (STEPS[-1], v[-1] / ERRORS["mlm"][-1]) for n, v in ERRORS.items()}
        assert {text.get_text(): text.xy for text in share.texts} == ends
        assert min(np.diff(sorted(text.get_position()[1] for text in share.texts))) > 0.04
        clash = panels["incompatibility"]
        assert np.allclose(clash.lines[0].get_ydata(), [0.1, 0.4, 0.2])
        (band,) = clash.collections
        assert {0.05, 0.5} <= {round(y, 9) for y in band.get_paths()[0].vertices[:, 1]}

    @pytest.mark.parametrize(
        "heights, moved",
        [
            ([], []),
            ([0.1, 0.5], [0.1, 0.5]),
            ([0.5, 0.5], [0.45, 0.55]),
            ([0.3, 0.5, 0.5, 0.62], [0.3, 0.44, 0.54, 0.64]),
        ],
    )
    def test_names_in_a_crowd_move_apart_around_their_mean(self, heights, moved):
        assert np.allclose(spread(heights, 0.1), moved)


class TestJsd:
    MATRIX = np.array(
        [[0.0, 0.9, 0.01, 0.8], [0.9, 0, 0.85, 0.02], [0.01, 0.85, 0, 0.8], [0.8, 0.02, 0.8, 0]]
    )

    def test_alike_joints_are_neighbours(self):
        order = cluster_order(self.MATRIX)
        assert {frozenset(order[:2]), frozenset(order[2:])} == {
            frozenset({0, 2}),
            frozenset({1, 3}),
        }

    def test_cells_hold_thousandths_in_the_order_of_the_labels(self):
        methods = ["mlm", "mrf", "hcb", "ag"]
        figure = draw_jsd({"one": self.MATRIX, "two": self.MATRIX / 2}, methods)
        first, second, _ = figure.axes  # two panels and the scale
        names = [tick.get_text() for tick in first.get_yticklabels()]
        assert names == [tick.get_text() for tick in second.get_xticklabels()]
        for axis, shown in ((first, ("10", "20")), (second, ("5.0", "10"))):
            texts = {text.get_position(): text.get_text() for text in axis.texts if text.get_text()}
            assert len(texts) == 12
            assert texts[names.index("MLM") + 0.5, names.index("HCB") + 0.5] == shown[0]
            assert texts[names.index("AG") + 0.5, names.index("MRF") + 0.5] == shown[1]
            assert axis.get_ylim() == (4, 0)  # the first name is on top in both

    @pytest.mark.parametrize(
        "value, text", [(0.0411, "41"), (0.0094, "9.4"), (0.00096, "1.0"), (4e-5, "0.04")]
    )
    def test_thousandths(self, value, text):
        assert millis(value) == text
