"""Files that appear whole or not at all: tensors, checkpoints, locks, checksums."""
