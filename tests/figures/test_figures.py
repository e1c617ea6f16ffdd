"""Figures show the numbers they are given, read back through matplotlib's objects."""

import numpy as np
import pytest
from twins import random_tables

from mlmjoint import METHODS, figures, joint
from mlmjoint.analysis import Interval
from mlmjoint.names import LABELS

ROWS = {"mlm": Interval(1.0, 0.5, 1.5), "ag": Interval(-0.2, -0.4, 0.1)}


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_a_figure_drawn_again_is_the_same_bytes_and_says_what_it_shows(suffix, tmp_path):
    for name in ("one", "two"):
        figure = figures.draw_intervals({"": {"random": ROWS}}, "nats")
        figures.save(figure, tmp_path / f"{name}.{suffix}", "seven of nine")
    one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two and len(one) > 4000 and b"seven of nine" in one


def texts(labels):
    return [label.get_text() for label in labels]


class TestIntervals:
    def test_points_and_intervals_lie_where_the_numbers_are(self):
        figure = figures.draw_intervals({"": {"random": ROWS}}, "nats", reference=0.0)
        (axis,) = figure.axes
        (points,) = [line for line in axis.get_lines() if line.get_marker() == "o"]
        assert list(points.get_xdata()) == [1.0, -0.2]
        ends = [segment[:, 0].tolist() for segment in axis.collections[0].get_segments()]
        assert ends == [[0.5, 1.5], [-0.4, 0.1]]
        assert texts(axis.get_yticklabels()) == ["MLM", "AG"]
        assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first name is on top
        assert figure.legends == []

    def test_series_differ_in_colour_mark_and_place_and_look_the_same_in_every_panel(self):
        both = {"random": ROWS, "contiguous": ROWS}
        figure = figures.draw_intervals({"x": both, "y": {"contiguous": ROWS}}, "nats")
        first, second = figure.axes
        one, twin = first.get_lines()
        (alone,) = second.get_lines()
        for look in ("get_marker", "get_color", "get_ydata"):
            assert str(getattr(one, look)()) != str(getattr(twin, look)())
            assert str(getattr(alone, look)()) == str(getattr(twin, look)())
        (legend,) = figure.legends
        assert texts(legend.get_texts()) == ["random", "contiguous"]

    @pytest.mark.parametrize(
        "rows, ticks",
        [
            ({"mlm": Interval(110.0, 90.0, 130.0), "ag": Interval(40.0, 35.0, 45.0)}, "50 100"),
            ({"mlm": Interval(60.0, 20.0, 200.0), "ag": Interval(0.7, 0.5, 0.9)}, "1 10 100"),
            ({"mlm": Interval(1.0, 0.97, 1.02), "ag": Interval(0.92, 0.91, 0.94)}, "0.95 1"),
        ],
    )
    def test_a_logarithmic_axis_has_plain_numbers(self, rows, ticks):
        (axis,) = figures.draw_intervals({"": {"random": rows}}, "nats", log_x=True).axes
        low, high = axis.get_xlim()
        shown = [t for t in axis.xaxis.get_major_locator()() if low <= t <= high]
        assert axis.get_xscale() == "log"
        assert " ".join(axis.xaxis.get_major_formatter()(t) for t in shown) == ticks

    def test_what_lies_beyond_the_cut_is_an_arrow_with_its_value(self):
        rows = {**ROWS, "mrf": Interval(19.0, 15.0, 24.0)}
        (axis,) = figures.draw_intervals({"": {"random": rows}}, "nats", cut=1.2).axes
        ends = [segment[:, 0].tolist() for segment in axis.collections[0].get_segments()]
        assert ends == [[0.5, 1.2], [-0.4, 0.1]] and axis.get_xlim()[1] == 1.2
        (arrow,) = [line for line in axis.get_lines() if line.get_marker() == ">"]
        assert list(arrow.get_xdata()) == [1.2] and arrow.get_ydata()[0] == pytest.approx(2)
        assert [text.strip() for text in texts(axis.texts)] == ["19"]

    @pytest.mark.parametrize("across", [1, 2])
    def test_panels_share_names_and_leave_no_empty_axes(self, across):
        rows = {name: {"random": ROWS} for name in "xyz"}
        rows["z"] = {"random": {"ag": ROWS["ag"]}}
        figure = figures.draw_intervals(rows, ["a", "b", "c"], across=across)
        shown = [axis for axis in figure.axes if axis.get_visible()]
        assert [axis.get_title() for axis in shown] == list("xyz")
        assert [axis.get_xlabel() for axis in shown] == list("abc")
        # A name that a panel lacks stays an empty line: rows line up.
        assert [len(axis.get_lines()[0].get_xdata()) for axis in shown] == [2, 2, 1]


def test_curves_and_points_lie_where_the_numbers_are():
    curves = {"ag": ([1, 10], [0.5, 0.1]), "other": ([2, 3], [4.0, 5.0])}
    (axis,) = figures.draw_curves(curves, "passes", "nats", log_x=True).axes
    drawn = [(x.get_label(), (list(x.get_xdata()), list(x.get_ydata()))) for x in axis.lines]
    assert drawn == [("AG", curves["ag"]), ("other", curves["other"])]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "linear")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("passes", "nats")
    (axis,) = figures.draw_points(curves, "x", "y", diagonal=True, levels={"mrf": 3.0}).axes
    for (xs, ys), cloud in zip(curves.values(), axis.collections, strict=True):
        assert cloud.get_offsets().tolist() == [list(pair) for pair in zip(xs, ys, strict=True)]
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines["equal"].get_xdata()) == list(lines["equal"].get_ydata())
    assert list(lines["MRF"].get_ydata()) == [3.0, 3.0]


def test_joints_have_a_down_and_b_across():
    tables = random_tables(4, 6, scale=2, seed=1)
    joints = {name: joint(tables, name) for name in ("mlm", "ag")}
    *panels, _ = figures.draw_joints(joints, tables, size=6).axes
    labels = panels[0].get_yticklabels(), panels[1].get_xticklabels()
    rows, columns = (list(map(int, texts(side))) for side in labels)
    for axis, q in zip(panels, joints.values(), strict=True):
        shown = axis.images[0].get_array()
        assert shown.shape == (4, 6) and np.allclose(shown, q.log_table().exp()[rows][:, columns])
    assert panels[0].get_ylabel() == "token at A" and panels[0].get_xlabel() == "token at B"


def test_tables_are_shown_as_they_are():
    tables = random_tables(5, 4, scale=2, seed=2)
    given_b, given_a, _ = figures.draw_tables(tables, size=5).axes
    rows = list(map(int, texts(given_b.get_yticklabels())))
    columns = list(map(int, texts(given_b.get_xticklabels())))
    assert rows == tables.log_p_a.argsort(descending=True).tolist()
    assert columns == tables.log_p_b.argsort(descending=True).tolist()
    for axis, table in ((given_b, tables.log_a), (given_a, tables.log_b)):
        assert np.allclose(axis.images[0].get_array(), table.exp()[rows][:, columns])
    assert given_b.get_title().startswith("p(a | b): each column")


def gains(*values):
    return [(2.0**k, Interval(v, v - 0.1, v + 0.2)) for k, v in enumerate(values)]


class TestDistance:
    def test_each_curve_passes_through_its_means(self):
        figure = figures.draw_distance(
            {"one": {"ag": gains(0.5, 0.3, 0.1)}, "two": {"ag": gains(0.2)}}
        )
        axis = figure.axes[0]
        (container,) = axis.containers
        line, _, (bars,) = container
        assert np.allclose(line.get_ydata(), [0.5, 0.3, 0.1])
        assert np.allclose(line.get_xdata(), [1, 2, 4])
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        assert np.allclose(ends, [[0.4, 0.7], [0.2, 0.5], [0.0, 0.3]])

        figure = figures.draw_distance(
            {"one": {m: gains(0.5, 0.3) for m in ("mrf", "mrf-l", "hcb", "ag")}}
        )
        first = [container[0].get_xdata()[0] for container in figure.axes[0].containers]
        assert len(set(first)) == 4 and max(first) / min(first) < 1.2  # moved apart within a bin

    def test_a_bar_far_longer_than_the_curves_is_cut(self):
        far = [(1.0, Interval(0.1, 0.05, 0.2)), (2.0, Interval(0.05, -9.0, 0.1))]
        low, high = figures.draw_distance({"one": {"ag": far}}).axes[0].get_ylim()
        assert -0.2 < low < 0 and 0.2 < high < 0.3
        low, high = figures.draw_distance({"one": {"ag": gains(0.5, 0.3)}}).axes[0].get_ylim()
        assert low < 0 and high > 0.7

    def test_a_study_without_bins_says_so(self):
        figure = figures.draw_distance({"few": {"ag": []}, "many": {"ag": gains(0.1, 0.2)}})
        assert texts(figure.axes[0].texts) == ["no bin has enough pairs"]
        assert texts(figure.legends[0].get_texts()) == ["AG"]


STEPS = (10, 100, 1000)
ERRORS = {name: (8.0, 2.0 + k, 0.5 / (k + 1)) for k, name in enumerate(METHODS)}
CLASH = [Interval(v, v - 0.05, v + 0.1) for v in (0.1, 0.4, 0.2)]


class TestTraining:
    def test_curves_are_drawn_as_they_are_and_against_the_mlm_with_names_at_their_ends(self):
        figure = figures.draw_training(STEPS, ERRORS, CLASH)
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
        clash = panels["interaction"]
        assert np.allclose(clash.lines[0].get_ydata(), [0.1, 0.4, 0.2])
        (band,) = clash.collections
        assert {0.05, 0.5} <= {round(y, 9) for y in band.get_paths()[0].vertices[:, 1]}


class TestJsd:
    MATRIX = np.array(
        [[0.0, 0.9, 0.01, 0.8], [0.9, 0, 0.85, 0.02], [0.01, 0.85, 0, 0.8], [0.8, 0.02, 0.8, 0]]
    )

    def test_cells_hold_thousandths_in_the_order_of_the_labels(self):
        methods = ["mlm", "mrf", "hcb", "ag"]
        figure = figures.draw_jsd({"one": self.MATRIX, "two": self.MATRIX / 2}, methods)
        first, second, _ = figure.axes  # two panels and the scale
        names = texts(first.get_yticklabels())
        assert names == texts(second.get_xticklabels())
        assert {*names[:2]} in ({"MLM", "HCB"}, {"MRF", "AG"})  # alike joints are neighbours
        for axis, shown in ((first, ("10", "20")), (second, ("5.0", "10"))):
            cells = {text.get_position(): text.get_text() for text in axis.texts if text.get_text()}
            assert len(cells) == 12
            assert cells[names.index("MLM") + 0.5, names.index("HCB") + 0.5] == shown[0]
            assert cells[names.index("AG") + 0.5, names.index("MRF") + 0.5] == shown[1]
            assert axis.get_ylim() == (4, 0)  # the first name is on top in both


def test_matrices_share_one_scale_and_leave_masked_cells_blank():
    scores = np.array([[1.0, -np.inf], [3.0, 2.0]])
    figure = figures.draw_matrices({"causal": scores, "both": scores.clip(0)}, ["a", "b"], "score")
    first, second = (axis.get_images()[0] for axis in figure.axes[:2])
    assert first.get_clim() == second.get_clim() == (0.0, 3.0)
    assert first.get_array().mask[0, 1] and second.get_array()[0, 1] == 0
    assert texts(figure.axes[0].get_xticklabels()) == ["a", "b"]


def test_maps_have_a_panel_each_and_a_number_at_every_point():
    maps = {
        "bank": {"river": [(0.0, 1.0, "0"), (2.0, 1.0, "1")], "money": [(5.0, 5.0, "2")]},
        "die": {"cube": [(1.0, 1.0, "3")]},
    }
    figure = figures.draw_maps(maps)
    first, second = figure.axes
    assert [axis.get_title() for axis in (first, second)] == ["bank", "die"]
    assert [(text.get_text(), text.xy) for text in first.texts] == [
        ("0", (0.0, 1.0)), ("1", (2.0, 1.0)), ("2", (5.0, 5.0)),
    ]  # fmt: skip
    assert texts(first.get_legend().get_texts()) == ["river", "money"]
