"""Measure many pairs, resumably: plan, records, workers."""
