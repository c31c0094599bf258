"""Fine-tunings of models that others trained: one file per model."""
