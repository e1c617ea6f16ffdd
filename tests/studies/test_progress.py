"""How far a study has come: the time left, on a terminal and in a log, however slow a pair is."""

from types import SimpleNamespace

import pytest

from mlmjoint.studies.progress import progress_bar


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved: ``clock.now += 60``."""
    fake = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("tqdm.std.time", lambda: fake.now)
    return fake


def shown_after(done: int, each: float, clock, capsys, mode="bar", before=0) -> str:
    """What stands there after ``done`` pairs of ``each`` seconds, ``before`` of them long ago."""
    with progress_bar(40, before, mode) as bar:
        for _ in range(done):
            clock.now += each
            bar.set_postfix_str("ag U-PPL 2", refresh=False)
            bar.update()
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("done", "each", "left"),
    [(1, 60, "39:00"), (30, 60, "10:00"), (3, 600, "6:10:00"), (38, 5, "00:10"), (40, 60, "00:00")],
)
def test_a_bar_knows_the_time_left_of_slow_pairs(done, each, left, clock, capsys):
    assert f"{done}/40 ETA {left}, ag U-PPL 2" in shown_after(done, each, clock, capsys)


def test_bar_and_log_tell_the_same_time_and_count_only_this_sitting(clock, capsys):
    bar = shown_after(2, 60, clock, capsys, before=10)
    log = shown_after(2, 60, clock, capsys, mode="log", before=10)
    assert "12/40 ETA 28:00" in bar
    assert log.endswith("12/40 pairs, 60.00s/pair, 28:00 left, ag U-PPL 2")


def test_a_bar_promises_nothing_before_the_first_pair_and_a_log_has_a_line_a_minute(clock, capsys):
    assert "ETA ?" in shown_after(0, 60, clock, capsys)
    assert shown_after(40, 9, clock, capsys, mode="log").count("left") == 5
    assert shown_after(5, 9, clock, capsys, mode="log") == ""
