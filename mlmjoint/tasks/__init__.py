"""What else a masked language model is used for: scoring, word senses, classification, tagging."""

from ..lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "dependence": "information_matrix mutual_information proxies",
        "encoder": "Encoded Encoder",
        "embeddings": "Embeddings anisotropy embed spread",
        "pretrained": "load_encoder",
        "examples": "Examples read_examples",
        "finetuning": (
            "evaluate finetune fit_task label_weights new_head predict task_loss task_rows"
            " task_scores"
        ),
        "generate": "Strategy chain_pairs draw_texts head_pairs score_texts",
        "prompts": "choose zero_shot",
        "senses": "Senses SenseText instance_vectors learn_senses sense_scores",
        "tagging": "convert entity_scores spans tag_set tags_of",
    },
)
