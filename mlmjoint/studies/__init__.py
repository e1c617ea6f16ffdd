"""Measure many pairs, resumably: plan, records, workers."""

from ..lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, {"plan": "stored_studies"})
