"""Language models: loading, the padded batch, log-probabilities, scalar heads and export."""
