"""posttrain's training against TRL and against the floor, in one run: `python -m bench`. See README.md here."""
