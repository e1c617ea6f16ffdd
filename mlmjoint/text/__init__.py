"""Sentences to study: files, hub datasets, and a toy world whose truth is known."""

from .corpora import Corpus, Encoded, Sentence, corpus, encode
from .toy_world import ToyWorld, tree_distance

__all__ = ["Corpus", "Encoded", "Sentence", "ToyWorld", "corpus", "encode", "tree_distance"]
