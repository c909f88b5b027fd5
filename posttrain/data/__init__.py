"""From raw files to tables of token ids: loading, validation, splitting, rendering, pairs, the data card."""
