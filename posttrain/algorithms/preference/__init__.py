"""Losses on pairs and labels, one per file."""
