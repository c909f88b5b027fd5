"""Where and how a stage's code runs: devices, threads, seeds, signals."""
