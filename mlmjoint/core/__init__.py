"""The paper in code: pairs, tables of conditionals, constructions, joints, metrics."""

from ..lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, {"reference": "DenseJoint"})
