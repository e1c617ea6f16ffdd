"""Unary perplexity (U-PPL) of an MLM: every content token masked alone, exp of the mean -log p."""

from __future__ import annotations

import math

import torch


def unary_perplexity(model, tokenizer, sentences, batch_tokens=8192, details=False):
    """exp( -1/N sum_n log p(w_n | sentence with w_n masked) ) over all content tokens.

    model: an MLM of transformers; BERT's is run with its head at the masked position alone.
    batch_tokens: sequences of one length are batched up to so many tokens.
    details: also return (mean -log p, N).
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    limit = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    by_length: dict[int, list[list[int]]] = {}
    for ids in tokenizer(list(sentences), truncation=True, max_length=limit)["input_ids"]:
        by_length.setdefault(len(ids), []).append(ids)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total, number = 0.0, 0
    with torch.inference_mode():
        for length, group in sorted(by_length.items()):
            ids = torch.tensor(group)  # (S, T)
            content = ~torch.isin(ids, torch.tensor(sorted(special)))
            row, place = content.nonzero(as_tuple=True)  # (N,), (N,)
            for part in torch.arange(len(row)).split(max(1, batch_tokens // length)):
                gold = ids[row[part], place[part]].to(device)
                masked = ids[row[part]].clone()  # (n, T)
                masked[torch.arange(len(part)), place[part]] = tokenizer.mask_token_id
                logits = logits_at(model, masked.to(device), place[part].to(device))  # (n, V)
                total -= logits.log_softmax(-1).gather(1, gold[:, None]).cpu().double().sum().item()
            number += len(row)
    model.train(was_training)
    mean = total / number if number else math.nan
    return (math.exp(mean), mean, number) if details else math.exp(mean)


def logits_at(model, input_ids, place):
    """Float32 logits (n, V) of row r at position place[r]."""
    rows = torch.arange(len(place), device=input_ids.device)
    if hasattr(model, "bert") and hasattr(model, "cls"):
        hidden = model.bert(input_ids).last_hidden_state  # (n, T, d)
        return model.cls(hidden[rows, place]).float()
    return model(input_ids).logits[rows, place].float()
