"""Pure functions on tensors: no I/O, no state, and no import of ours. One method per file."""
