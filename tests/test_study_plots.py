"""The pictures of studies show what they are given, read back through matplotlib's objects."""

import numpy as np
import pytest

from mlmjoint.errors import InputError
from mlmjoint.stats import Interval
from mlmjoint.study_plots import cluster_order, draw_distance, draw_jsd, millis


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

    def test_curves_are_moved_apart_by_less_than_a_bin(self):
        figure = draw_distance({"one": {m: gains(0.5, 0.3) for m in ("mrf", "mrf-l", "hcb", "ag")}})
        first = [container[0].get_xdata()[0] for container in figure.axes[0].containers]
        assert len(set(first)) == 4 and max(first) / min(first) < 1.2

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

    def test_nothing_to_draw_is_refused(self):
        with pytest.raises(InputError):
            draw_distance({})
        with pytest.raises(InputError):
            draw_jsd({}, [])


class TestJsd:
    MATRIX = np.array(
        [[0.0, 0.9, 0.01, 0.8], [0.9, 0, 0.85, 0.02], [0.01, 0.85, 0, 0.8], [0.8, 0.02, 0.8, 0]]
    )

    def test_alike_joints_are_neighbours(self):
        order = cluster_order(self.MATRIX)
        assert sorted(order) == [0, 1, 2, 3]
        places = {k: order.index(k) for k in order}
        assert abs(places[0] - places[2]) == abs(places[1] - places[3]) == 1

    def test_cells_hold_thousandths_in_the_order_of_the_labels(self):
        methods = ["mlm", "mrf", "hcb", "ag"]
        figure = draw_jsd({"one": self.MATRIX, "two": self.MATRIX / 2}, methods)
        axis = figure.axes[0]
        names = [tick.get_text() for tick in axis.get_yticklabels()]
        shown = {text.get_position(): text.get_text() for text in axis.texts}
        assert len(shown) == 12
        assert shown[names.index("MLM"), names.index("HCB")] == "10"
        assert shown[names.index("AG"), names.index("MRF")] == "20"
        assert len(figure.axes) == 3  # two panels and the scale

    @pytest.mark.parametrize(
        "value, text", [(0.0411, "41"), (0.0094, "9.4"), (0.00096, "1.0"), (4e-5, "0.04")]
    )
    def test_thousandths(self, value, text):
        assert millis(value) == text
