"""One flat file per stage: a list of named calls. `runner.py` opens a stage, runs it and publishes what it made."""
