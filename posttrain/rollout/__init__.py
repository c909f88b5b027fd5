"""Generation for training: the engine protocol, the manager and the buffer of samples."""
