"""The two conditional tables of a pair: every token at one position, the other predicted."""

import torch
from tqdm import tqdm

from .. import arrays, checks
from ..core.tables import Tables
from ..engine.forward.routes import Route, choose_route, eval_mode, logits_at
from ..engine.forward.write import fill_rows, normalise_rows, table_memory
from ..errors import InputError

Tensor = torch.Tensor


def conditionals(
    mlm, pair, tokens=None, batch_size="auto", progress=False, out=None, route=None
) -> Tables:
    r"""Compute p(a | b) and p(b | a) for two masked positions of a sentence.

    Let A and B be two positions and x the rest of the sentence. A masked language model gives, for
    every pair of tokens i and j,

    .. math::

        p(a = i \mid b = j, x), \qquad p(b = j \mid a = i, x), \qquad p(a = i \mid x), \qquad
        p(b = j \mid x):

    its prediction at A with j written at B, its prediction at B with i written at A, and its
    predictions with both positions masked. That takes 2V + 1 sequences.

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``).
    pair : Pair
        A sentence with two masked positions (``mlm.pair``).
    tokens : (ids_a, ids_b), optional
        Candidate sets of Va and Vb token ids; by default both are the whole vocabulary. Only these
        tokens are substituted and predicted; every distribution, ``log_z`` included, is
        renormalised over its set.
    batch_size : int or "auto"
        Sequences per batch; "auto" fits the cache on CPU and the free memory on a GPU.
    progress : bool
        Show a bar, on a terminal only.
    out : Tables, optional
        Tables of an earlier call with the same shape, to be overwritten: a study over many pairs
        then allocates memory once.
    route : {"fast", "head", "plain"}, optional
        Force a way of computing; by default the fastest that agrees with the plain forward.

    Returns
    -------
    Tables
        ``log_a`` and ``log_b`` of shape (Va, Vb): log p(a = i | b = j), whose columns sum to one,
        and log p(b = j | a = i), whose rows do; ``log_z_a`` (Vb,) and ``log_z_b`` (Va,), their log
        normalisers; ``log_p_a`` (Va,) and ``log_p_b`` (Vb,), both masked. They are float32
        (float64 for a float64 model), on the model's device (on the CPU for a model on Metal,
        which has no float64).

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> tables = mlmjoint.conditionals(mlm, mlm.pair("[MASK] [MASK] runs ."))
    >>> tables.shape
    (262, 262)
    >>> bool(((tables.log_b.exp().sum(1) - 1).abs() < 1e-5).all())
    True

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023, section 2.
    """
    embedded = mlm.model.get_input_embeddings().weight.shape[0]
    arrays.check_pair(pair, mlm.mask_token_id, embedded)
    if batch_size != "auto" and (checks.whole_number(batch_size) or 0) < 1:
        raise InputError(f"batch_size is {batch_size!r}; give a positive whole number or 'auto'")
    sets = arrays.candidate_sets(tokens, mlm.vocab_size, embedded)
    with eval_mode(mlm.model), torch.inference_mode():
        return _tables(mlm, pair, tokens is None, sets, batch_size, progress, out, route)


def _tables(mlm, pair, whole: bool, sets, batch_size, progress: bool, out, route) -> Tables:
    a, b = pair.positions
    model = mlm.model
    route = Route(model, route) if route else choose_route(model, pair.input_ids, (a, b))
    device = route.device
    dtype = torch.promote_types(next(mlm.model.parameters()).dtype, torch.float32)
    ids_a, ids_b = (ids.to(device) for ids in sets)
    keep_a, keep_b = (None, None) if whole else (ids_a, ids_b)
    log_a, log_b = table_memory((len(ids_a), len(ids_b)), dtype, device, out)
    log_p_a, log_p_b = _both_masked(mlm, pair, route, dtype, keep_a, keep_b)

    def context(masked, token, substituted):
        return f"a logit at position {masked} with {_name(mlm, int(token))} at {substituted}"

    total, hidden = len(ids_a) + len(ids_b), None if progress else True  # None: off a terminal
    with tqdm(desc="conditionals", total=total, leave=False, disable=hidden) as bar:
        shared = {"batch_size": batch_size, "advance": bar.update}
        # Column j of log_a: predictions at A with token j at B. Row i of log_b: at B with i at A.
        log_z_a = fill_rows(log_a.t(), route, pair.input_ids, a, b, ids_b, keep_a, **shared)
        arrays.check_finite(log_z_a, lambda j: context(a, ids_b[j], b))
        log_z_b = fill_rows(log_b, route, pair.input_ids, b, a, ids_a, keep_b, **shared)
        arrays.check_finite(log_z_b, lambda i: context(b, ids_a[i], a))
    # In Tables' order. Metal has no float64, in which every joint is summed.
    parts = [log_a, log_b, log_z_a.to(dtype), log_z_b.to(dtype), log_p_a, log_p_b, ids_a, ids_b]
    *parts, ids_a, ids_b = [part.cpu() if device.type == "mps" else part for part in parts]
    tokens = None if whole else (ids_a, ids_b)
    return Tables(*parts, gold=pair.gold, tokens=tokens, tokenizer=mlm.tokenizer)


def _both_masked(mlm, pair, route: Route, dtype, *sets: Tensor | None) -> list[Tensor]:
    """log p(a | x) and log p(b | x): one forward, read at both positions."""
    positions = torch.tensor(pair.positions, device=route.device)
    ids = pair.input_ids.to(route.device).expand(2, -1)  # (2, T)
    both = logits_at(mlm.model, ids, positions, route.head).to(dtype)  # (2, V)
    for logits, position in zip(both, pair.positions, strict=True):
        arrays.check_finite(
            logits, lambda k, at=position: f"the logit of {_name(mlm, k)} at position {at}"
        )
    both = [logits if ids is None else logits[ids] for logits, ids in zip(both, sets, strict=True)]
    for logits in both:
        normalise_rows(logits[None])
    return both


def _name(mlm, token_id: int) -> str:
    text = mlm.tokenizer.convert_ids_to_tokens(token_id) if mlm.tokenizer is not None else None
    return f"token {token_id}" if text is None else f"token {text!r} (id {token_id})"
