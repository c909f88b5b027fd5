"""A worker of the bench that only counts: it notes each step in a file, and fails at the one that it is told."""

from pathlib import Path

from bench.meter import Meter, read_task, write_result

if __name__ == "__main__":
    task = read_task()
    meter = Meter()
    for step in range(task["steps"]):
        if step == task.get("fails_at"):
            raise ValueError("as it was told")
        with Path(task["notes"]).open("a") as notes:
            notes.write(f"{task['name']}{step} ")
        meter.end_step(7)
    write_result(task, meter.result(1, {}))
