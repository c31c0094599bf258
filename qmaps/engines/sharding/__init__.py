"""Sharded tensors: shards, scales and reductions over several processes."""
