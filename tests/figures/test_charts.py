"""Pictures of studies show the numbers they are given."""

import numpy as np
import pytest
import torch
from twins import random_tables

import mlmjoint
from mlmjoint.analysis.stats import Interval
from mlmjoint.figures import draw_curves, draw_intervals, draw_joints, draw_points, draw_tables

ROWS = {"mlm": Interval(1.0, 0.5, 1.5), "ag": Interval(-0.2, -0.4, 0.1)}


def test_points_and_intervals_lie_where_the_numbers_are():
    figure = draw_intervals({"": {"random": ROWS}}, "nats", reference=0.0)
    (axis,) = figure.axes
    (points,) = [line for line in axis.get_lines() if line.get_marker() == "o"]
    assert list(points.get_xdata()) == [1.0, -0.2]
    ends = [segment[:, 0].tolist() for segment in axis.collections[0].get_segments()]
    assert ends == [[0.5, 1.5], [-0.4, 0.1]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["MLM", "AG"]
    assert figure.legends == []


def test_the_first_name_is_on_top_and_series_are_told_apart():
    figure = draw_intervals({"": {"random": ROWS, "contiguous": ROWS}}, "nats")
    (axis,) = figure.axes
    low, high = axis.get_ylim()
    assert low > high
    marks = {line.get_marker() for line in axis.get_lines()}
    colours = {line.get_color() for line in axis.get_lines()}
    assert len(marks) == len(colours) == 2
    places = [set(line.get_ydata()) for line in axis.get_lines()]
    assert not places[0] & places[1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["random", "contiguous"]


def test_a_logarithmic_axis_has_plain_numbers():
    rows = {"mlm": Interval(110.0, 90.0, 130.0), "ag": Interval(40.0, 35.0, 45.0)}
    (axis,) = draw_intervals({"": {"random": rows}}, "nats", log_x=True).axes
    low, high = axis.get_xlim()
    held = [t for t in axis.xaxis.get_major_locator()() if low <= t <= high]
    assert axis.get_xscale() == "log"
    assert [axis.xaxis.get_major_formatter()(t) for t in held] == ["50", "100"]


def test_a_long_logarithmic_axis_has_powers_of_ten_only():
    rows = {"mlm": Interval(60.0, 20.0, 200.0), "ag": Interval(0.7, 0.5, 0.9)}
    (axis,) = draw_intervals({"": {"random": rows}}, "nats", log_x=True).axes
    low, high = axis.get_xlim()
    assert [t for t in axis.xaxis.get_major_locator()() if low <= t <= high] == [1, 10, 100]


def test_what_lies_beyond_the_cut_is_an_arrow_with_its_value():
    rows = {**ROWS, "mrf": Interval(19.0, 15.0, 24.0)}
    (axis,) = draw_intervals({"": {"random": rows}}, "nats", cut=1.2).axes
    (points,) = [line for line in axis.get_lines() if line.get_marker() == "o"]
    assert list(points.get_xdata()) == [1.0, -0.2]
    ends = [segment[:, 0].tolist() for segment in axis.collections[0].get_segments()]
    assert ends == [[0.5, 1.2], [-0.4, 0.1]] and axis.get_xlim()[1] == 1.2
    (arrow,) = [line for line in axis.get_lines() if line.get_marker() == ">"]
    assert list(arrow.get_xdata()) == [1.2] and arrow.get_ydata()[0] == pytest.approx(2)
    assert [text.get_text().strip() for text in axis.texts] == ["19"]


@pytest.mark.parametrize("across", [1, 2])
def test_panels_share_names_and_leave_no_empty_axes(across):
    panels = {name: {"random": ROWS} for name in "xyz"}
    panels["z"] = {"random": {"ag": ROWS["ag"]}}
    figure = draw_intervals(panels, ["a", "b", "c"], across=across)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in shown] == list("xyz")
    assert [axis.get_xlabel() for axis in shown] == list("abc")
    # A name that a panel lacks stays an empty line: rows line up.
    assert [len(axis.get_lines()[0].get_xdata()) for axis in shown] == [2, 2, 1]


def test_a_series_looks_the_same_in_every_panel():
    figure = draw_intervals(
        {"x": {"random": ROWS, "contiguous": ROWS}, "y": {"contiguous": ROWS}}, "nats"
    )
    first, second = figure.axes
    (alone,) = second.get_lines()
    twin = first.get_lines()[1]
    assert alone.get_color() == twin.get_color() and alone.get_marker() == twin.get_marker()
    assert list(alone.get_ydata()) == list(twin.get_ydata())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["random", "contiguous"]


def test_a_narrow_logarithmic_axis_has_ticks():
    rows = {"mlm": Interval(1.0, 0.97, 1.02), "ag": Interval(0.92, 0.91, 0.94)}
    (axis,) = draw_intervals({"": {"random": rows}}, "ratio", log_x=True).axes
    low, high = axis.get_xlim()
    assert len([t for t in axis.xaxis.get_major_locator()() if low <= t <= high]) >= 2


def names(ticks):
    return [tick.get_text() for tick in ticks]


def test_joints_have_a_down_and_b_across():
    tables = random_tables(4, 6, scale=2, seed=1)
    joints = {name: mlmjoint.joint(tables, name) for name in ("mlm", "ag")}
    first, second, _ = draw_joints(joints, tables, size=6).axes
    for axis, q in ((first, joints["mlm"]), (second, joints["ag"])):
        shown = axis.images[0].get_array()
        rows, columns = (list(map(int, names(t))) for t in (ticks(first, "y"), ticks(axis, "x")))
        assert shown.shape == (4, 6) == (len(rows), len(columns))
        expected = q.log_table().exp()[rows][:, columns]
        assert np.allclose(shown, expected)
    assert first.get_ylabel() == "token at A" and first.get_xlabel() == "token at B"


def ticks(axis, side):
    return axis.get_yticklabels() if side == "y" else axis.get_xticklabels()


def test_tables_are_shown_as_they_are():
    tables = random_tables(5, 4, scale=2, seed=2)
    given_b, given_a, _ = draw_tables(tables, size=5).axes
    rows = list(map(int, names(given_b.get_yticklabels())))
    columns = list(map(int, names(given_b.get_xticklabels())))
    assert rows == tables.log_p_a.argsort(descending=True).tolist()
    assert columns == tables.log_p_b.argsort(descending=True).tolist()
    for axis, table in ((given_b, tables.log_a), (given_a, tables.log_b)):
        assert np.allclose(axis.images[0].get_array(), table.exp()[rows][:, columns])
    assert torch.allclose(tables.log_a.exp().sum(0), torch.ones(4, dtype=torch.float64))
    assert given_b.get_title().startswith("p(a | b): each column")


def test_curves_and_points_lie_where_the_numbers_are():
    curves = {"ag": ([1, 10], [0.5, 0.1]), "other": ([2, 3], [4.0, 5.0])}
    (axis,) = draw_curves(curves, "passes", "nats", log_x=True).axes
    drawn = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines
    }
    assert drawn == {"AG": curves["ag"], "other": curves["other"]}
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "linear")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("passes", "nats")
    (axis,) = draw_points(curves, "x", "y", diagonal=True, levels={"mrf": 3.0}).axes
    for (xs, ys), cloud in zip(curves.values(), axis.collections, strict=True):
        assert cloud.get_offsets().tolist() == [list(pair) for pair in zip(xs, ys, strict=True)]
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines["equal"].get_xdata()) == list(lines["equal"].get_ydata())
    assert list(lines["MRF"].get_ydata()) == [3.0, 3.0]
