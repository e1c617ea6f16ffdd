"""What else a masked language model is used for: scoring, word senses, classification, tagging."""

from ..lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, {"encoder": "Encoded Encoder"})
