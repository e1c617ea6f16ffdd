"""Joints of more than two positions: conditionals, constructions, Arnold-Gokhale, trees."""

from ..lazy import exports

homes = {"constructions": "SPAN_METHODS", "joints": "SpanJoint objective", "tree": "TreeJoint"}
__getattr__, __dir__, __all__ = exports(__name__, homes)
