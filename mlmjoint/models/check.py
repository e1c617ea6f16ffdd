"""Does a masked language model satisfy what the package assumes of it? One line per check."""

import time
import warnings
from typing import NamedTuple

import torch

from ..core.pairs import Pair
from ..core.tables import Tables
from ..engine.device import free_memory
from ..engine.forward.architectures import is_hooked
from ..engine.forward.routes import ROUTES, TOLERANCE, Route, choose_route, eval_mode, logits_at
from ..engine.forward.write import auto_batch, fill_rows
from ..errors import InputError
from .conditionals import conditionals
from .mlm import MLM

TOKENS = 16  # substituted and predicted at each position
WORDS = 6  # ordinary tokens of the test sentence
SLICE_SECONDS = 1.0  # how long the cost is measured
NORMALISED = 1e-5  # how far a sum of probabilities may be from one
HOW = {"fast": "shared prefix, last layer at one position"}  # the routes in words
HOW |= {"head": "own encoder, head at one position", "plain": "the whole model at every position"}


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and what was seen."""

    name: str
    passed: bool
    detail: str


def check_mlm(mlm: MLM) -> list[Check]:
    r"""Check that a masked language model is fit for the joints of this package.

    A model p is fit if its prediction at a position is a distribution that depends on the sentence
    alone,

    .. math:: \sum_{i=1}^{V} p(x_s = i \mid x_{\setminus s}) = 1,

    whatever else is in the batch and however far it is padded, and if the fast route through it
    gives the logits of its plain forward. The checks use a short sentence of ordinary tokens.

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``), or one of your own in its place.

    Returns
    -------
    list of Check
        One ``(name, passed, detail)`` per check: mask token, special tokens, vocabulary, weights,
        dtype, hooks, route, fast route, normalisation, batch size, padding, cost. If the tokenizer
        or the weights are unusable, the list ends there: nothing else can be run.

    Examples
    --------
    >>> import mlmjoint
    >>> checks = mlmjoint.check_mlm(mlmjoint.load("toy", device="cpu"))
    >>> checks[0]
    Check(name='mask token', passed=True, detail='[MASK], id 4')
    >>> [check.name for check in checks if not check.passed]
    []

    References
    ----------
    .. [1] Pedregosa et al., "Scikit-learn: Machine Learning in Python", JMLR 12, 2011, whose
       ``check_estimator`` does this for estimators.
    """
    with eval_mode(mlm.model), torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a route that disagrees is a line of its own
        results = [_run(check, mlm) for check in TOKENIZER_AND_WEIGHTS]
        if all(result.passed for result in results):
            results += [_run(check, mlm) for check in OTHERS]
    return results


def _run(check, mlm: MLM) -> Check:
    name = check.__name__[1:].replace("_", " ")
    try:
        return Check(name, True, check(mlm))
    except Exception as error:  # whatever a foreign model does is a result, not a crash
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return Check(name, False, kind + " ".join(str(error).split()))


def _mask_token(mlm: MLM) -> str:
    token, index = mlm.tokenizer.mask_token, mlm.tokenizer.mask_token_id
    if token is None or index is None:
        raise InputError("the tokenizer has no mask token")
    masks = mlm.encode("[MASK] [MASK]").count(index)
    if masks != 2:
        raise InputError(f"the tokenizer reads {masks} masks in '{token} {token}'")
    return f"{token}, id {index}"


def _special_tokens(mlm: MLM) -> str:
    ids, embedded = sorted(mlm.tokenizer.all_special_ids), mlm.embedded
    if ids[-1] >= embedded:
        raise InputError(f"token id {ids[-1]} has no embedding; the model has {embedded}")
    names = mlm.tokenizer.convert_ids_to_tokens(ids)
    return ", ".join(f"{name} {index}" for name, index in zip(names, ids, strict=True))


def _vocabulary(mlm: MLM) -> str:
    ids = torch.tensor([mlm.encode("[MASK] [MASK]")], device=mlm.device)
    width = mlm.model(input_ids=ids).logits.shape[-1]
    sizes = f"{len(mlm.tokenizer)} tokens, {mlm.embedded} embeddings, {width} logits"
    if width != mlm.vocab_size:
        raise InputError(f"{sizes}, but vocab_size is {mlm.vocab_size}")
    if mlm.embedded < width:
        raise InputError(f"{sizes}; not every token that is predicted can be substituted")
    if len(mlm.tokenizer) > width:
        raise InputError(f"{sizes}; the tokenizer and the model do not belong together")
    return sizes


def _weights(mlm: MLM) -> str:
    for name, weight in mlm.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise InputError(f"{name} contains values that are not finite")
    return f"{sum(weight.numel() for weight in mlm.model.parameters()):,}, all finite"


def _dtype(mlm: MLM) -> str:
    dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in mlm.model.parameters()})
    if len(dtypes) > 1:
        raise InputError(f"the weights mix {' and '.join(dtypes)}")
    return f"{dtypes[0]} weights, {'float64' if dtypes == ['float64'] else 'float32'} tables"


def _hooks(mlm: MLM) -> str:
    if is_hooked(mlm.model):
        raise InputError("hooks or a patched forward: tables need the plain forward, which is slow")
    return "none"


def _route(mlm: MLM) -> str:
    pair = _sentence(mlm)
    name = choose_route(mlm.model, pair.input_ids, pair.positions).name
    return f"{name} ({HOW[name]})"


def _fast_route(mlm: MLM) -> str:
    """The fastest route there is code for, used or not, against the plain forward."""
    for name in ROUTES[:-1]:
        try:
            Route(mlm.model, name)
        except InputError:
            continue
        tables = (_some_tables(mlm, name), _some_tables(mlm, "plain"))
        return _same(*(torch.cat([table.log_a, table.log_b]) for table in tables))
    return f"none for {type(mlm.model).__name__}"


def _normalisation(mlm: MLM) -> str:
    tables = _some_tables(mlm)
    sums = [tables.log_a.double().exp().sum(0), tables.log_b.double().exp().sum(1)]
    sums += [log_p.double().exp().sum()[None] for log_p in (tables.log_p_a, tables.log_p_b)]
    error = float((torch.cat(sums) - 1).abs().max())
    if not error <= NORMALISED:
        raise InputError(f"probabilities sum to one only up to {error:.1e}")
    return f"probabilities sum to one up to {error:.1e}"


def _batch_size(mlm: MLM) -> str:
    """The plain forward of several sentences, together and one at a time."""
    pair = _sentence(mlm)
    batch = pair.input_ids.repeat(4, 1)  # (4, T)
    batch[:, pair.positions[1]] = torch.tensor(_ordinary_tokens(mlm, 4) * 4)[:4]
    together = _logits(mlm, batch, pair.positions[0])
    return _same(together, torch.cat([_logits(mlm, row[None], pair.positions[0]) for row in batch]))


def _padding(mlm: MLM) -> str:
    """The plain forward of a sentence with and without padding behind it."""
    pair, token = _sentence(mlm), mlm.tokenizer.pad_token_id
    extra = min(4, mlm.max_length - len(pair.input_ids))
    if extra < 1 or token is None:
        return "not needed: the tokenizer has no padding token" if extra > 0 else "no room for it"
    ids = pair.input_ids[None].to(mlm.device)  # (1, T)
    padded = torch.nn.functional.pad(ids, (0, extra), value=token)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, extra))
    logits = mlm.model(input_ids=padded, attention_mask=mask).logits[:, pair.positions[0]]
    return _same(logits.cpu(), _logits(mlm, ids, pair.positions[0]))


def _cost(mlm: MLM) -> str:
    """Seconds of both tables, from a slice of the substitutions; bytes, from their shape."""
    pair = _sentence(mlm)
    route = choose_route(mlm.model, pair.input_ids, pair.positions)
    count = min(mlm.vocab_size, auto_batch(route, len(pair.input_ids)))
    dtype = torch.promote_types(next(mlm.model.parameters()).dtype, torch.float32)
    table = torch.empty(count, mlm.vocab_size, dtype=dtype, device=route.device)
    tokens, done, start = torch.arange(count, device=route.device), 0, time.perf_counter()
    while done == 0 or time.perf_counter() - start < SLICE_SECONDS:
        log_z = fill_rows(table, route, pair.input_ids, *pair.positions, tokens)
        done += len(log_z.cpu())  # waits for a GPU
    seconds = (time.perf_counter() - start) / done * 2 * mlm.vocab_size
    needed, free = 2 * mlm.vocab_size**2 * dtype.itemsize, free_memory(route.device)
    memory = f"two tables need {needed / 1e6:,.1f} MB and {free / 1e6:,.0f} MB are free"
    if needed > free:
        raise InputError(f"{memory}; use candidate sets, tokens=(ids_a, ids_b)")
    shape = f"T = {len(pair.input_ids)} tokens, V = {mlm.vocab_size:,}"
    return f"about {seconds:,.1f} s a pair ({shape}) on {route.device}; {memory}"


# A line is named after its function.
TOKENIZER_AND_WEIGHTS = (_mask_token, _special_tokens, _vocabulary, _weights)
OTHERS = (_dtype, _hooks, _route, _fast_route, _normalisation, _batch_size, _padding, _cost)


def _sentence(mlm: MLM) -> Pair:
    """Two masks among ordinary tokens, between what the tokenizer puts around a text."""
    ids = mlm.encode("[MASK] [MASK]")
    a, b = (position for position, token in enumerate(ids) if token == mlm.mask_token_id)
    words = _ordinary_tokens(mlm, min(WORDS, mlm.max_length - len(ids)))
    half = len(words) // 2
    ids = [*ids[:a], *words[:half], *ids[a : b + 1], *words[half:], *ids[b + 1 :]]
    return Pair(torch.tensor(ids), (a + half, b + half))


def _ordinary_tokens(mlm: MLM, count: int) -> list[int]:
    """Token ids spread over the vocabulary, no special ones."""
    special = {*mlm.tokenizer.all_special_ids}
    ids = [i for i in range(min(mlm.vocab_size, len(mlm.tokenizer))) if i not in special]
    return ids[:: max(1, len(ids) // max(1, count))][:count]


def _some_tables(mlm: MLM, name: str | None = None) -> Tables:
    ids = _ordinary_tokens(mlm, TOKENS)
    return conditionals(mlm, _sentence(mlm), tokens=(ids, ids), route=name)


def _logits(mlm: MLM, input_ids: torch.Tensor, position: int) -> torch.Tensor:
    return logits_at(mlm.model, input_ids.to(mlm.device), position, head=None).cpu()


def _same(left: torch.Tensor, right: torch.Tensor) -> str:
    """Largest difference of two tables or logits; a failure if rounding cannot explain it."""
    error = float((left.double() - right.double()).abs().max())
    tolerance = TOLERANCE.get(left.dtype, 0.1) * max(1.0, float(right.abs().max()))
    if not error <= tolerance:
        raise InputError(f"largest difference {error:.1e}; rounding explains {tolerance:.1e}")
    return f"largest difference {error:.1e}"
