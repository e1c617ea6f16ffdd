"""Figures show the numbers they are given, read back through matplotlib's objects."""

import numpy as np
import pytest
from twins import random_tables

import mlmjoint
from mlmjoint.analysis import Interval
from mlmjoint.figures import draw_curves, draw_intervals, draw_joints, draw_points, draw_tables

ROWS = {"mlm": Interval(1.0, 0.5, 1.5), "ag": Interval(-0.2, -0.4, 0.1)}


def texts(labels):
    return [label.get_text() for label in labels]


class TestIntervals:
    def test_points_and_intervals_lie_where_the_numbers_are(self):
        figure = draw_intervals({"": {"random": ROWS}}, "nats", reference=0.0)
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
        figure = draw_intervals({"x": both, "y": {"contiguous": ROWS}}, "nats")
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
        (axis,) = draw_intervals({"": {"random": rows}}, "nats", log_x=True).axes
        low, high = axis.get_xlim()
        shown = [t for t in axis.xaxis.get_major_locator()() if low <= t <= high]
        assert axis.get_xscale() == "log"
        assert " ".join(axis.xaxis.get_major_formatter()(t) for t in shown) == ticks

    def test_what_lies_beyond_the_cut_is_an_arrow_with_its_value(self):
        rows = {**ROWS, "mrf": Interval(19.0, 15.0, 24.0)}
        (axis,) = draw_intervals({"": {"random": rows}}, "nats", cut=1.2).axes
        ends = [segment[:, 0].tolist() for segment in axis.collections[0].get_segments()]
        assert ends == [[0.5, 1.2], [-0.4, 0.1]] and axis.get_xlim()[1] == 1.2
        (arrow,) = [line for line in axis.get_lines() if line.get_marker() == ">"]
        assert list(arrow.get_xdata()) == [1.2] and arrow.get_ydata()[0] == pytest.approx(2)
        assert [text.strip() for text in texts(axis.texts)] == ["19"]

    @pytest.mark.parametrize("across", [1, 2])
    def test_panels_share_names_and_leave_no_empty_axes(self, across):
        rows = {name: {"random": ROWS} for name in "xyz"}
        rows["z"] = {"random": {"ag": ROWS["ag"]}}
        figure = draw_intervals(rows, ["a", "b", "c"], across=across)
        shown = [axis for axis in figure.axes if axis.get_visible()]
        assert [axis.get_title() for axis in shown] == list("xyz")
        assert [axis.get_xlabel() for axis in shown] == list("abc")
        # A name that a panel lacks stays an empty line: rows line up.
        assert [len(axis.get_lines()[0].get_xdata()) for axis in shown] == [2, 2, 1]


def test_curves_and_points_lie_where_the_numbers_are():
    curves = {"ag": ([1, 10], [0.5, 0.1]), "other": ([2, 3], [4.0, 5.0])}
    (axis,) = draw_curves(curves, "passes", "nats", log_x=True).axes
    drawn = [(x.get_label(), (list(x.get_xdata()), list(x.get_ydata()))) for x in axis.lines]
    assert drawn == [("AG", curves["ag"]), ("other", curves["other"])]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "linear")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("passes", "nats")
    (axis,) = draw_points(curves, "x", "y", diagonal=True, levels={"mrf": 3.0}).axes
    for (xs, ys), cloud in zip(curves.values(), axis.collections, strict=True):
        assert cloud.get_offsets().tolist() == [list(pair) for pair in zip(xs, ys, strict=True)]
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines["equal"].get_xdata()) == list(lines["equal"].get_ydata())
    assert list(lines["MRF"].get_ydata()) == [3.0, 3.0]


def test_joints_have_a_down_and_b_across():
    tables = random_tables(4, 6, scale=2, seed=1)
    joints = {name: mlmjoint.joint(tables, name) for name in ("mlm", "ag")}
    *panels, _ = draw_joints(joints, tables, size=6).axes
    labels = panels[0].get_yticklabels(), panels[1].get_xticklabels()
    rows, columns = (list(map(int, texts(side))) for side in labels)
    for axis, q in zip(panels, joints.values(), strict=True):
        shown = axis.images[0].get_array()
        assert shown.shape == (4, 6) and np.allclose(shown, q.log_table().exp()[rows][:, columns])
    assert panels[0].get_ylabel() == "token at A" and panels[0].get_xlabel() == "token at B"


def test_tables_are_shown_as_they_are():
    tables = random_tables(5, 4, scale=2, seed=2)
    given_b, given_a, _ = draw_tables(tables, size=5).axes
    rows = list(map(int, texts(given_b.get_yticklabels())))
    columns = list(map(int, texts(given_b.get_xticklabels())))
    assert rows == tables.log_p_a.argsort(descending=True).tolist()
    assert columns == tables.log_p_b.argsort(descending=True).tolist()
    for axis, table in ((given_b, tables.log_a), (given_a, tables.log_b)):
        assert np.allclose(axis.images[0].get_array(), table.exp()[rows][:, columns])
    assert given_b.get_title().startswith("p(a | b): each column")
