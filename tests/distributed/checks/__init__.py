"""Checks that several processes run, by subject; ``tests.distributed.worker`` starts them."""
