"""Train a masked language model."""

from ..lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "settings": "Settings",
        "recipes": "RECIPES initialise learn_wordpiece",
        "masking": "Masks MaskedBatches masked_loss set_dropout unary_perplexity",
        "nsp": "NextSentences next_sentence_scores pretraining_loss with_next_sentence",
        "loop": "fit",
    },
)
