"""From records to statements: intervals, tests, printed sheets, claims, distances, costs.

The modules are ``claims``, ``columns``, ``comparisons``, ``costs``, ``distance``, ``stats``,
``summary``, ``table`` and ``truth``; the names below are those that chapters use most.
"""

from ..lazy import exports
from ..names import BASELINES, LABELS, PAPER

__getattr__, __dir__, _names = exports(
    __name__,
    {
        "stats": "Comparison Interval bootstrap holm sign_flip slope spearman with_holm",
        "table": "Entry Sheet number",
        "columns": "column compare finished gains starred title",
        "claims": "Claim Sentences verdict_sheet",
        "comparisons": "by_corpus differences predictors",
    },
)
__all__ = ["BASELINES", "LABELS", "PAPER", *_names]
