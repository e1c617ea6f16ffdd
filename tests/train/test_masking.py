"""What one step sees and minimises: its sentences, their masks, the loss; and U-PPL."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_text import SENTENCES
from transformers import DataCollatorForLanguageModeling

from mlmjoint.train.masking import (
    MaskedBatches,
    epoch_order,
    masked_loss,
    set_dropout,
    unary_perplexity,
)
from mlmjoint.train.settings import Settings


def batches(tokenizer, seed=0, **settings):
    settings = Settings(**{"batch_size": 8, "steps": 20, "decay_fraction": 0.5, **settings})
    return MaskedBatches(tokenizer, SENTENCES, settings, seed, 32)


def test_masks_have_berts_frequencies_and_spare_special_tokens(tokenizer):
    masked_batches = batches(tokenizer, batch_size=64)
    content = chosen = masked = kept = 0
    for step in range(150):
        rows = {"input_ids": masked_batches.rows(step)}
        clean = tokenizer.pad(rows, return_tensors="pt")["input_ids"]
        batch = masked_batches[step]
        special = torch.isin(clean, torch.tensor(tokenizer.all_special_ids))
        at = batch["labels"] != -100
        assert not (at & special).any()
        assert torch.equal(batch["labels"][at], clean[at])
        assert torch.equal(batch["input_ids"][~at], clean[~at])
        content += (~special).sum().item()
        chosen += at.sum().item()
        masked += (batch["input_ids"][at] == tokenizer.mask_token_id).sum().item()
        kept += (batch["input_ids"][at] == clean[at]).sum().item()
    expected_kept = 0.1 + 0.1 / len(tokenizer)  # a random token may be the same one
    for share, number, expected in (
        (chosen / content, content, 0.15),
        (masked / chosen, chosen, 0.8),
        (kept / chosen, chosen, expected_kept),
    ):
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / number)


def test_mask_rate_and_dropout_follow_the_decay(tiny):
    s = Settings(steps=20, decay_fraction=0.5, mask_rate=0.3, dropout=0.2)
    assert (s.mask_rate_at(20), s.dropout_at(20)) == (0.3, 0.2)
    s = replace(s, final_mask_rate=0.1, final_dropout=0.0)
    assert [round(s.mask_rate_at(step), 3) for step in (0, 10, 15, 20)] == [0.3, 0.3, 0.2, 0.1]
    assert [s.dropout_at(step) for step in (0, 9, 10, 20)] == [0.2, 0.2, 0.0, 0.0]
    set_dropout(tiny, 0.25)
    drops = {m.p for m in tiny.modules() if isinstance(m, torch.nn.Dropout)}
    assert drops == {tiny.config.hidden_dropout_prob} == {0.25}


def test_a_batch_depends_on_seed_and_number_alone(tokenizer):
    first = batches(tokenizer, mask_rate=0.5)[1]
    torch.rand(3)
    same = batches(tokenizer, mask_rate=0.5)
    other, again = same[2], same[1]
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["labels"], other["labels"])
    reseeded = batches(tokenizer, mask_rate=0.5, seed=1)[1]
    assert not torch.equal(first["labels"], reseeded["labels"])


def test_every_sentence_is_drawn_once_an_epoch_in_batches_of_like_length():
    lengths = np.array([5 + (i * 7) % 20 for i in range(403)])
    first, second = (epoch_order(lengths, 8, seed=3, epoch=e).tolist() for e in range(2))
    assert sorted(first) == sorted(second) == list(range(403))
    assert first != second
    groups = lengths[first[:400]].reshape(-1, 8)
    assert (groups.max(1) - groups.min(1)).mean() < 2


def test_loss_and_gradient_equal_those_of_the_whole_model(tiny, tokenizer, monkeypatch):
    tiny.eval()
    torch.manual_seed(1)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)
    ids = tokenizer([*SENTENCES[:5], "A cat sleeps."])["input_ids"]
    batch = dict(collate([{"input_ids": row} for row in ids]))
    assert 0 in batch["attention_mask"]  # sentences of unequal length
    expected = tiny(**batch).loss
    expected.backward()
    plain = {name: p.grad.clone() for name, p in tiny.named_parameters()}
    for unknown in (False, True):  # a head that is not known runs everywhere
        if unknown:
            monkeypatch.setattr("mlmjoint.train.masking.find_head", lambda model: None)
        tiny.zero_grad()
        total, count = masked_loss(tiny, batch)
        assert (total / count).item() == pytest.approx(expected.item(), rel=1e-5)
        (total / count).backward()
        for name, p in tiny.named_parameters():
            torch.testing.assert_close(p.grad, plain[name], rtol=1e-4, atol=1e-7)


def test_unary_perplexity_equals_one_mask_at_a_time(tiny, tokenizer):
    sentences = ["A dog runs.", "A girl sings in the garden.", "A zebra waits."]
    total, number = 0.0, 0
    tiny.eval()
    for sentence in sentences:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                log_p = tiny(masked).logits[0, place].double().log_softmax(-1)
            total -= log_p[ids[0, place]].item()
            number += 1
    tiny.train()
    value, tokens = unary_perplexity(tiny, tokenizer, sentences, batch_tokens=20)
    assert tiny.training and tokens == number
    assert value == pytest.approx(math.exp(total / number), rel=1e-4)
    tiny.cls.predictions.bias.data[5] = 1e4  # so sure of one token that exp overflows
    assert unary_perplexity(tiny, tokenizer, sentences) == (math.inf, number)


def test_unigram_replacement_draws_tokens_of_the_text_by_their_frequency(tokenizer):
    """A tenth of the chosen tokens are drawn anew, never a special one, as often as they occur."""
    uniform, unigram = (
        batches(tokenizer, batch_size=64, random_tokens=kind) for kind in ("uniform", "unigram")
    )
    counts = np.bincount(np.concatenate(unigram.ids), minlength=len(tokenizer)).astype(float)
    counts[tokenizer.all_special_ids] = 0.0
    share, chosen = counts / counts.sum(), 0
    seen = np.zeros(len(tokenizer))
    for step in range(250):
        batch, other = unigram[step], uniform[step]
        at = batch["labels"] != -100
        assert torch.equal(at, other["labels"] != -100)  # the same tokens are chosen
        new = at & (batch["input_ids"] != batch["labels"])
        new &= batch["input_ids"] != tokenizer.mask_token_id
        seen += np.bincount(batch["input_ids"][new], minlength=len(tokenizer))
        chosen += int(at.sum())
        assert torch.equal(unigram[step]["input_ids"], batch["input_ids"])
    assert not seen[counts == 0].any()
    # A draw that hits the word it replaces is not seen: expect share * (1 - share) of each word.
    expected = 0.1 * chosen * share * (1 - share)
    error = np.sqrt(expected.clip(1))
    assert (np.abs(seen - expected) < 4.5 * error).all()
    assert abs(seen.sum() - expected.sum()) < 4 * math.sqrt(expected.sum())
