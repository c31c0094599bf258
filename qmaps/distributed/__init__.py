"""Several processes: shards of states, low-precision gradient exchange, a speed-up model."""
