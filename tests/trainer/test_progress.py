import io
import logging

import pytest

from posttrain.trainer import progress
from posttrain.trainer.progress import ProgressReport


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_in_a_file_every_few_seconds_and_at_the_end(clock, caplog):
    caplog.set_level(logging.INFO)
    with ProgressReport(logging.getLogger("posttrain.test"), "sft", 100, "steps", done=20) as report:
        for step in range(21, 101):
            clock[0] += 1
            report.advance(step, f"loss {step}")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "sft: 25 of 100 steps, 1.00 steps/s, 1:15 left, loss 25"
    assert lines[-1] == "sft: 100 of 100 steps, 1.00 steps/s, 0:00 left, loss 100"
    assert len(lines) == 16


def test_a_bar_on_a_terminal_and_no_lines(clock, caplog, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    caplog.set_level(logging.INFO)
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with ProgressReport(logging.getLogger("posttrain.test"), "sft", 10, "steps") as report:
        for step in range(1, 11):
            clock[0] += 0.5
            report.advance(step, "loss 0.5")
    assert "10/10" in screen.getvalue() and "2.00 steps/s" in screen.getvalue()
    assert not caplog.records
