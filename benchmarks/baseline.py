"""The published procedure for the tables, written plainly: whole sequences through the whole model.

Batches of substituted sequences go through ``model(...)``, which predicts every position; the
log-softmax of the masked position is copied into the table.
"""

import torch


@torch.inference_mode()
def fill_table(model, input_ids, masked, substituted, tokens, table, by_row, batch_size=64):
    """Row k (or column k) of ``table`` <- log p(· at masked | tokens[k] at substituted)."""
    for start in range(0, len(tokens), batch_size):
        part = tokens[start : start + batch_size]
        batch = input_ids.repeat(len(part), 1)  # (n, T)
        batch[:, substituted] = part
        logits = model(input_ids=batch, attention_mask=torch.ones_like(batch)).logits  # (n, T, V)
        log_probs = torch.log_softmax(logits[:, masked], dim=-1)  # (n, V)
        if by_row:
            table[start : start + len(part)] = log_probs
        else:
            table[:, start : start + len(part)] = log_probs.t()
