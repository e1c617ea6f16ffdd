"""The toy MLM: text drawn from the toy world, and a measure of the model against the truth.

``mlmjoint train --recipe toy --out FOLDER`` also keeps the weights of some steps, each in a model
folder of its own next to the last one (``FOLDER-step-00100``), so a reader can watch the MLM's
conditionals approach those of the grammar.
"""

import hashlib
import math

import torch

from ..core.reference import kl
from ..text.toy_grammar import RULES_TEXT
from ..text.toy_world import VOCAB, ToyWorld
from .data import Text
from .masking import masked_log_probs
from .recipes import Recipe, log_unigram

MONITORED = 200
HELD_OUT_SEED = 1_000_003  # seeds of the training text count up from 0, those of the rest from here


def draw_text(recipe: Recipe, seed: int) -> Text:
    """Sentences of the grammar to train on, and other draws that are set aside."""
    world = ToyWorld()
    texts = world.sample_text(recipe.sentences, seed)
    held_out = world.sample_text(recipe.held_out, HELD_OUT_SEED + seed)
    monitored = held_out[:MONITORED]
    source = {"source": f"the toy world of mlmjoint, seed {seed}", "licence": "MIT"}
    source |= {"sentences": len(texts), "dropped": 0, "repeats": 1, "file": "toy_grammar.txt"}
    source["sha256"] = hashlib.sha256(RULES_TEXT.encode()).hexdigest()
    split = {"train": len(texts), "validation": len(held_out), "monitored": len(monitored)}
    about = {"data": "sentences of the toy grammar", "licence": "MIT", "sources": [source]}
    about["split"] = {**split, "how": "others"}
    scored = [("other sentences of the toy grammar", held_out)]
    return Text(texts, texts, monitored, scored, about)


class TruthGap:
    """How far an MLM's single-mask conditionals are from the grammar's, on given sentences.

    training: the text whose unigram frequencies are the baseline.
    """

    def __init__(self, sentences: list[str], tokenizer, training: list[str]):
        world, self.items, truths = ToyWorld(), [], []
        for ids in tokenizer(sentences)["input_ids"]:
            for place in range(1, len(ids) - 1):
                self.items.append((ids, place))
                truths.append(world.true_conditional(ids, place))  # (V,)
        self.gold = torch.tensor([ids[place] for ids, place in self.items])  # (N,)
        self.log_p = torch.stack(truths)  # (N, V)
        self.unigram = log_unigram(tokenizer, training[:20_000])  # (V,)

    def measure(self, model) -> dict:
        """The card's comparison with the truth, in nats."""
        divergence, log_q_gold = torch.empty(2, len(self.items), dtype=torch.float64)  # (N,) each
        for numbers, log_q in masked_log_probs(model, self.items, VOCAB.index("[MASK]")):
            divergence[numbers] = kl(self.log_p[numbers], log_q, 1)
            log_q_gold[numbers] = log_q.gather(1, self.gold[numbers, None])[:, 0]
        nll_truth = -float(self.log_p.gather(1, self.gold[:, None]).mean())
        gap = {
            "nll": -float(log_q_gold.mean()),
            "nll_truth": nll_truth,
            "entropy_truth": float(torch.special.entr(self.log_p.exp()).sum(1).mean()),
            "kl_mean": float(divergence.mean()),
            "kl_median": float(divergence.median()),
            "kl_above_0.1": float((divergence > 0.1).double().mean()),
            "uppl_truth": math.exp(nll_truth),
            "uppl_unigram": math.exp(-float(self.unigram[self.gold].double().mean())),
        }
        return {name: round(value, 5) for name, value in gap.items()}
