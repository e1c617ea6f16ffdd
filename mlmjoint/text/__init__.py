"""Sentences to study: files, hub datasets, and a toy world whose truth is known."""

from .corpora import Corpus, Encoded, Sentence, corpus, encode
from .toy_world import ToyWorld, tree_distance
from .vocabulary import text_vocabulary

__all__ = ["Corpus", "Encoded", "Sentence", "ToyWorld", "corpus", "encode", "text_vocabulary"]
__all__ += ["tree_distance"]
