"""How far a study has come: the time left, on a terminal and in a log, however slow a pair is."""

from types import SimpleNamespace

import pytest

from mlmjoint.studies import progress
from mlmjoint.studies.progress import Progress

RECORD = {"methods": {"ag": {"u_nll": 1.0, "p_nll": 2.0}}}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved: ``clock.now += 60``."""
    fake = SimpleNamespace(now=1000.0)
    fake.monotonic = lambda: fake.now
    monkeypatch.setattr(progress, "time", fake)
    return fake


def shown_after(done: int, each: float, clock, capsys, mode="bar", total=40, before=0) -> str:
    """What stands there after ``done`` pairs of ``each`` seconds, ``before`` of them long ago."""
    with Progress(total, [RECORD] * before, "ag", mode) as bar:
        for _ in range(done):
            clock.now += each
            bar.update(RECORD)
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("done", "each", "left"),
    [(1, 60, "39 min"), (30, 60, "10 min"), (3, 600, "6.2 h"), (38, 5, "10 s"), (40, 60, "0 s")],
)
def test_a_bar_knows_the_time_left_of_slow_pairs(done, each, left, clock, capsys):
    shown = shown_after(done, each, clock, capsys)
    assert f"{done}/40 ETA {left} ag U-PPL 2.718 P-PPL 7.389" in shown


def test_bar_and_log_tell_the_same_time_and_count_only_this_sitting(clock, capsys):
    bar = shown_after(2, 60, clock, capsys, before=10)
    log = shown_after(2, 60, clock, capsys, mode="log", before=10)
    assert "12/40 ETA 28 min" in bar
    assert log.endswith("12/40 pairs, 60 s a pair, 28 min left, ag U-PPL 2.718 P-PPL 7.389")


def test_a_bar_promises_nothing_before_the_first_pair(clock, capsys):
    assert "ETA" not in shown_after(0, 60, clock, capsys)
