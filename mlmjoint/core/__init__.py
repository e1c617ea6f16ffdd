"""The paper in code: pairs, tables of conditionals, constructions, joints, metrics."""
