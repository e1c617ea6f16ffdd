"""Sentences to study: files, hub datasets, and a toy world whose truth is known."""

from .corpora import Corpus, Sentence, corpus
from .tokens import Encoded, draw_pair, encode, text_vocabulary
from .toy_world import ToyWorld, tree_distance

__all__ = ["Corpus", "Encoded", "Sentence", "ToyWorld", "corpus", "draw_pair", "encode"]
__all__ += ["text_vocabulary", "tree_distance"]
