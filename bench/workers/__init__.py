"""What is measured, each in a process of its own: ours, TRL, the floor; and what makes their models and texts."""
