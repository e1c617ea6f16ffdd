"""How much two open positions depend on each other: mutual information, and what stands for it.

A sampler that writes two positions at once from a product loses exactly their mutual information.
The proxies are what samplers use instead; here each can be compared with the exact value.
"""

import itertools

import torch
from torch import Tensor

from ..core.joints import Joint, joint
from ..core.pairs import Pair
from ..core.reference import kl
from ..engine.forward.routes import eval_mode, features_at, log_probs_at
from ..engine.passes.tiles import row_blocks
from ..errors import InputError
from ..models.conditionals import conditionals
from ..models.mlm import MLM
from ..models.pair_head import PairHead, check_head, decoder_of, joint_of

PROXIES = ("entropy", "confidence", "drift", "attention", "jacobian")


def mutual_information(q: Joint) -> float:
    r"""I(A; B) = Σ q log q / (q_A q_B), in nats, of any joint, in blocks of rows.

    >>> import numpy as np
    >>> from mlmjoint import joint_from_tables
    >>> half = np.log([[0.9, 0.1], [0.1, 0.9]])
    >>> round(mutual_information(joint_from_tables(half, half, "ag")), 4)
    0.3681
    """
    log_a, log_b = q.log_marginals()
    total = 0.0
    for block in row_blocks(q.tables.shape):
        total += float(kl(q._rows(block), log_a[block, None] + log_b))  # (n, Vb)
    return max(0.0, total)


def information_matrix(mlm: MLM, ids, positions, head: PairHead | None = None, k=None) -> Tensor:
    """Mutual information of every two of the masked positions of a text, (m, m), in nats.

    ids : token ids (T,), masks at ``positions``, all of which stay masked
    head : reads all pairs off one forward pass; without it each is that of its AG joint, which
        takes 2V passes, or 2k with the k likeliest tokens at each position
    """
    ids, positions = torch.as_tensor(ids), list(positions)
    if len(positions) < 2:
        raise InputError(f"the text has {len(positions)} masks; write at least two [MASK]")
    out = torch.zeros(len(positions), len(positions), dtype=torch.float64)
    pairs = list(itertools.combinations(range(len(positions)), 2))
    if head is not None:
        check_head(mlm, head)
        decoder, places = decoder_of(mlm), torch.tensor(positions, device=mlm.device)
        with eval_mode(mlm.model), torch.inference_mode():
            hidden = features_at(mlm.model, ids[None].to(mlm.device), places, decoder)  # (m, H)
    for s, t in pairs:
        if head is not None:
            places = positions[s], positions[t]
            q = joint_of(mlm, head, decoder, hidden[[s, t]], places)
        else:
            pair = Pair(ids, (positions[s], positions[t]))
            sets = None if k is None else mlm.candidates(pair, k)
            q = joint(conditionals(mlm, pair, tokens=sets), "ag")
        out[s, t] = out[t, s] = mutual_information(q)
    return out


def proxies(mlm: MLM, pair: Pair) -> dict[str, float]:
    """What samplers take for dependence, each made larger where more dependence is expected.

    entropy : H(A) H(B), both masked
    confidence : 1 − max p(a) max p(b)
    drift : KL(p(b | â) ‖ p(b)) with the likeliest token â written at A, and the reverse, summed
    attention : the mean weight over layers and heads from A to B, and from B to A, summed
    jacobian : the norm of the gradient of the likeliest log p(b) by A's input embedding, and the
        reverse, summed
    """
    with eval_mode(mlm.model):
        return {**_predicted(mlm, pair), **_attention(mlm, pair), **_jacobian(mlm, pair)}


def _predicted(mlm: MLM, pair: Pair) -> dict[str, float]:
    ids, (a, b) = pair.input_ids.to(mlm.device), pair.positions
    with torch.inference_mode():
        both = log_probs_at(mlm.model, ids.repeat(2, 1), torch.tensor([a, b])).cpu()  # (2, V)
        best = both.argmax(1)
        written = ids.repeat(2, 1)
        written[0, a], written[1, b] = best.tolist()
        after = log_probs_at(mlm.model, written, torch.tensor([b, a])).cpu()  # B given â, A given b̂
    p = both.exp()
    drift = (after.exp() * (after - both.flip(0))).sum()
    entropies = torch.special.entr(p).sum(1)
    return {
        "entropy": float(entropies.prod()),
        "confidence": 1 - float(p.amax(1).prod()),
        "drift": float(drift),
    }


def _attention(mlm: MLM, pair: Pair) -> dict[str, float]:
    ids, (a, b), config = pair.input_ids[None].to(mlm.device), pair.positions, mlm.model.config
    before = config._attn_implementation
    mlm.model.set_attn_implementation("eager")  # the others do not return their weights
    try:
        with torch.inference_mode():
            found = mlm.model(input_ids=ids, output_attentions=True).attentions
    finally:
        mlm.model.set_attn_implementation(before)
    weights = torch.cat(found).mean((0, 1))  # of (layers, heads, T, T)
    return {"attention": float(weights[a, b] + weights[b, a])}


def _jacobian(mlm: MLM, pair: Pair) -> dict[str, float]:
    ids, total = pair.input_ids[None].to(mlm.device), 0.0
    embedded = mlm.model.get_input_embeddings()(ids).detach()  # (1, T, E)
    for source, target in (pair.positions, pair.positions[::-1]):
        inputs = embedded.clone().requires_grad_()
        with torch.enable_grad():
            log_p = mlm.model(inputs_embeds=inputs).logits[0, target].log_softmax(-1)
            (gradient,) = torch.autograd.grad(log_p.max(), inputs)
        total += float(gradient[0, source].norm())
    return {"jacobian": total}
