"""Joints of more than two positions: conditionals, constructions, Arnold-Gokhale, trees."""

from ..core.joints import joint
from ..lazy import exports
from .constructions import span_joint
from .tables import SpanTables

joint.register(SpanTables, span_joint)
homes = {
    "constructions": "SPAN_METHODS",
    "joints": "SpanJoint objective",
    "tree": "TreeJoint tree_of",
}
__getattr__, __dir__, __all__ = exports(__name__, homes)
