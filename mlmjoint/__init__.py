"""Joint distributions of two tokens, from a masked language model: exact, fast, and certified."""

from .lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "errors": "InputError",
        "names": "METHODS",
        "models.mlm": "load MLM Span",
        "models.known": "available",
        "models.exlm": "exlm_joint",
        "models.check": "check_mlm",
        "models.pair_head": "load_head pair_joint PairHead",
        "core.pairs": "Pair",
        "core.tables": "Tables tables_from_arrays",
        "models.conditionals": "conditionals",
        "core.joints": "joint joints joint_from_tables Joint",
        "core.metrics": "metrics",
        "spans.conditionals": "span_conditionals",
        "spans.tables": "SpanTables",
        "spans.tree": "tree",
        "studies.study": "study",
        "studies.records": "load_study",
        "tasks.fill": "fill Filling Fillings",
        "tasks.pipeline": "JointFillMask",
        "tasks.score": "score",
        "tasks.embeddings": "embed",
    },
)
