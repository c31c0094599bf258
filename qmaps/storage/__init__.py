"""Files written atomically: tensors, checkpoints, locks, checksums."""
