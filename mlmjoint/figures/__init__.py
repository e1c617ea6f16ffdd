"""From numbers to pictures: every figure of the book is drawn by one of these functions."""

from ..lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "style": "check_path house_style save",
        "joints": "draw_joints draw_matrices draw_matrix draw_tables",
        "lines": "draw_curves draw_intervals draw_maps draw_points",
        "studies": "draw_distance draw_jsd draw_training",
    },
)
