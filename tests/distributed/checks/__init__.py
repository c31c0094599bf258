"""Checks for several processes, by subject; ``tests.distributed.worker`` starts them."""
