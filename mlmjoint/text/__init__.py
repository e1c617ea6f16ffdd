"""Sentences to study: files, hub datasets, and a toy world whose truth is known."""
