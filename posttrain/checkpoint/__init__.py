"""Files that are whole or absent: publishing a stage's folder, exact resume state, finished parts of a stage."""
