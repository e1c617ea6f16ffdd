"""Measure many pairs, resumably: plan, records, workers; and other experiments, row by row."""

from ..lazy import exports

homes = {"plan": "stored_studies", "runs": "Run start_run load_run"}
__getattr__, __dir__, __all__ = exports(__name__, homes)
