"""Facts about this machine, and what follows from them: the rest of the code asks here, never `sys.platform`."""
