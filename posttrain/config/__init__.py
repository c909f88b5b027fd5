"""The experiment's configuration: pydantic models, loading with clear errors, and the slice that each stage reads."""
