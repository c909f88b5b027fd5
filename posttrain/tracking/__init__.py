"""The one place that knows MLflow.

A stage appends its metrics to `metrics.jsonl` in its resume folder (`metrics_file.py`): that file is the truth. A
child process (`sender.py`) reads the file and sends it to MLflow while the stage works, so that neither a slow store,
MLflow's imports nor its logging touch the stage, and so that a stage that is killed is still marked KILLED. Nothing but
`store.py` and `sender.py` imports MLflow, and both do so inside functions.
"""
