"""Train a masked language model."""
