"""What one step of MLM training sees: the draws, their masks, the loss at the chosen positions."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForLanguageModeling


class Stream(torch.utils.data.Sampler):
    """Draws 0, 1, 2, ... of training: draw d is a sentence that depends on (seed, d) alone.

    Epoch after epoch, sentences are shuffled, sorted by length within large windows, cut into
    batches of similar length, and the batches shuffled. Yields (d, index), so the masks can depend
    on d as well: a resumed run needs no random state to go on as if it had not stopped.
    """

    def __init__(self, lengths, batch_size, seed, draws, window=50):
        self.lengths, self.batch_size = np.asarray(lengths), batch_size
        self.seed, self.draws, self.window = seed, draws, window

    def __len__(self):
        return self.draws

    def __iter__(self):
        draw, epoch = 0, 0
        while draw < self.draws:
            for index in self._epoch(epoch):
                yield draw, index
                draw += 1
                if draw == self.draws:
                    return
            epoch += 1

    def _epoch(self, epoch):
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        size = self.batch_size * self.window
        windows = [order[i : i + size] for i in range(0, len(order), size)]
        order = np.concatenate([w[np.argsort(self.lengths[w], kind="stable")] for w in windows])
        whole = len(order) // self.batch_size * self.batch_size
        batches = order[:whole].reshape(-1, self.batch_size)
        batches = batches[rng.permutation(len(batches))]
        return [*batches.ravel().tolist(), *order[whole:].tolist()]


class Sentences(torch.utils.data.Dataset):
    """Token ids of each sentence, read by a (draw, index) of the stream."""

    def __init__(self, tokenizer, sentences, max_length):
        self.ids = tokenizer(sentences, truncation=True, max_length=max_length)["input_ids"]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, key):
        draw, index = key
        return {"input_ids": self.ids[index], "draw": draw}


class Masker(DataCollatorForLanguageModeling):
    """transformers' collator (chosen at a rate, then 80/10/10); masks depend on (seed, draw).

    The rate stays at `rate` until step `decay_from` and then goes linearly to `final_rate` at the
    last step: evaluation masks one token alone, and the end of training may lean towards that.
    Of several processes each masks the whole batch, as a single one would, and keeps its own rows.
    """

    def plan(self, seed, rate, final_rate, decay_from, steps, batch_size, process=0, processes=1):
        self.base, self.rate, self.final_rate = seed, rate, final_rate
        self.decay_from, self.steps, self.batch_size = decay_from, steps, batch_size
        self.process, self.processes = process, processes
        return self

    def rate_at(self, step):
        if self.final_rate is None or step <= self.decay_from:
            return self.rate
        share = min(1.0, (step - self.decay_from) / max(1, self.steps - self.decay_from))
        return self.rate + share * (self.final_rate - self.rate)

    def torch_call(self, examples):
        draw = int(examples[0]["draw"])
        self.mlm_probability = self.rate_at(draw // self.batch_size)
        words = np.random.SeedSequence([self.base, draw]).generate_state(1, np.uint64)
        self.generator = torch.Generator().manual_seed(int(words[0] >> 1))
        batch = super().torch_call([{"input_ids": e["input_ids"]} for e in examples])
        if self.processes == 1:
            return batch
        chosen = int((batch["labels"] != -100).sum())
        own = {key: rows[self.process :: self.processes] for key, rows in batch.items()}
        return {**own, "share": chosen / self.processes}


def masked_loss(model, input_ids, labels, attention_mask=None, share=None, **_):
    """Mean -log P of the gold token at the chosen positions; the head runs nowhere else.

    Equals BertForMaskedLM's own loss, without logits (B, T, V) at positions that are not scored.
    share: chosen positions of the whole batch / number of processes. The sum is divided by it, so
    that the processes' mean is the mean over the whole batch, however unevenly the masks fell.
    """
    chosen = labels != -100  # (B, T)
    hidden = model.bert(input_ids, attention_mask).last_hidden_state  # (B, T, d)
    logits = model.cls(hidden[chosen])  # (n, V)
    if share is None:
        return {"loss": cross_entropy(logits.float(), labels[chosen])}
    return {"loss": cross_entropy(logits.float(), labels[chosen], reduction="sum") / share}
