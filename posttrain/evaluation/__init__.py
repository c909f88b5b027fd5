"""How good a model is, and how several compare: metrics with intervals, tables, plots and the report."""
