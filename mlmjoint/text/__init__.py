"""Sentences to study: files, hub datasets, and a toy world whose truth is known."""

from .corpora import Corpus, Encoded, Sentence, corpus, encode
from .draw import draw_pair
from .toy_world import ToyWorld, tree_distance
from .vocabulary import text_vocabulary

__all__ = ["Corpus", "Encoded", "Sentence", "ToyWorld", "corpus", "draw_pair", "encode"]
__all__ += ["text_vocabulary", "tree_distance"]
