"""The roles of a training run: each class owns one model and answers a few verbs."""
