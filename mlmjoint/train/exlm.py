"""Training of ExLM: batches whose every chosen token is masked, and the loss over all paths."""

from torch import Tensor
from transformers import DataCollatorForLanguageModeling

from ..models.exlm import ExLM
from .masking import MaskedBatches


class AllMaskedBatches(MaskedBatches):
    """``batches[n]`` as of BERT, but every chosen token becomes [MASK]: none is kept or replaced.

    A state can only stand for a token that is hidden.
    """

    def __init__(self, tokenizer, *others):
        super().__init__(tokenizer, *others)
        self._mask.collate = DataCollatorForLanguageModeling(
            tokenizer, mask_replace_prob=1.0, random_replace_prob=0.0
        )


def path_loss(model: ExLM, batch: dict) -> tuple[Tensor, int]:
    """(sum of -log p(y_1 ... y_M) over the sentences, number of masked tokens): eq-exlm.

    The anchors are not masked and cost nothing, so the ratio at k = 1 is a plain model's loss.
    """
    inputs = (batch[key] for key in ("input_ids", "attention_mask", "labels"))
    return -model.log_likelihood(*inputs).sum(), int((batch["labels"] != -100).sum())
