"""Tables against the model's own forward, one sequence at a time, for every architecture."""

import os
import re
import sys
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from architectures import ARCHITECTURES, MASK, V, random_mlm
from torch import nn

import mlmjoint
from mlmjoint import InputError
from mlmjoint.core import reference
from mlmjoint.core.pairs import Pair
from mlmjoint.engine.forward import write
from mlmjoint.engine.forward.routes import ROUTES, choose_route

# Some virtual machines announce AMX and then refuse it, killing any bfloat16 product; oneDNN reads
# this at its first product, so setting it when tests are collected is early enough.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

T = 9

shared = cache(random_mlm)  # for tests that leave the model as it is


def make_pair(a, b, gold=None, seed=1, length=T):
    torch.manual_seed(seed)
    ids = torch.randint(5, V, (length,))
    ids[0], ids[-1] = 2, 3
    ids[a] = ids[b] = MASK
    return Pair(ids, (a, b), gold)


def slow_tables(model, pair):
    """One sequence at a time through the whole model, in float64."""
    return SimpleNamespace(**reference.conditional_tables(model, pair.input_ids, *pair.positions))


def assert_same(found, expected, tolerance=1e-4):
    for name in ("log_a", "log_b", "log_z_a", "log_z_b", "log_p_a", "log_p_b"):
        left, right = getattr(found, name).double(), getattr(expected, name).double()
        assert left.shape == right.shape, name
        error = float((left - right).abs().max())
        assert error <= tolerance, f"{name} is off by {error}"


# First and last legal position; adjacent in the middle.
PAIRS = [make_pair(1, T - 2, (6, 9)), make_pair(3, 4)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tables_equal_the_plain_forward(name):
    mlm, expected_route = shared(name), ARCHITECTURES[name][2]
    with torch.inference_mode():
        assert choose_route(mlm.model, PAIRS[0].input_ids, (1, T - 2)).name == expected_route
    for pair in PAIRS:
        tables, expected = mlmjoint.conditionals(mlm, pair), slow_tables(mlm.model, pair)
        assert float(expected.log_a.std()) > 0.5  # the model is not flat: a mistake would show
        assert_same(tables, expected)
        assert tables.gold == pair.gold
        assert tables.log_a.dtype == torch.float32
        assert tables.log_a.is_contiguous() and tables.log_b.is_contiguous()
        for log_table, dim in ((tables.log_a, 0), (tables.log_b, 1)):
            assert float((log_table.double().exp().sum(dim) - 1).abs().max()) < 1e-6
        for vector in (tables.log_p_a, tables.log_p_b):
            assert abs(float(vector.double().exp().sum()) - 1) < 1e-6
    for route in ROUTES[ROUTES.index(expected_route) :]:
        assert_same(mlmjoint.conditionals(mlm, pair, route=route), expected)


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_batch_size_changes_nothing(name, batch_size):
    mlm = shared(name)
    tables = mlmjoint.conditionals(mlm, PAIRS[0], batch_size=batch_size)
    assert_same(tables, mlmjoint.conditionals(mlm, PAIRS[0]), 2e-5)


@pytest.mark.parametrize("name", ["bert", "mobilebert"])
def test_float64_models_give_float64_tables(name):
    mlm = random_mlm(name)
    mlm.model.double()
    tables = mlmjoint.conditionals(mlm, PAIRS[0])
    assert tables.log_a.dtype == tables.log_b.dtype == torch.float64
    assert_same(tables, slow_tables(mlm.model, PAIRS[0]), 1e-10)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_bfloat16_models_give_float32_tables(name):
    mlm = random_mlm(name)
    expected = mlmjoint.conditionals(mlm, PAIRS[0])
    mlm.model.bfloat16()
    tables = mlmjoint.conditionals(mlm, PAIRS[0])
    assert tables.log_a.dtype == tables.log_b.dtype == tables.log_p_a.dtype == torch.float32
    assert float((tables.log_a - expected.log_a).abs().median()) < 0.1
    assert float((tables.log_b.double().exp().sum(1) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["bert", "mobilebert"])
@pytest.mark.parametrize("route", [None, "plain"])
def test_candidate_sets_are_the_full_table_restricted_and_renormalised(name, route):
    mlm = shared(name)
    ids_a, ids_b = [7, 1, 22, 5], torch.tensor([0, 9, 4, 11, 6, 21])
    full = mlmjoint.conditionals(mlm, PAIRS[0])
    some = mlmjoint.conditionals(mlm, PAIRS[0], tokens=(ids_a, ids_b), route=route)
    ids_a = torch.tensor(ids_a)
    logits_a = (full.log_a + full.log_z_a)[ids_a][:, ids_b].double()
    logits_b = (full.log_b + full.log_z_b[:, None])[ids_a][:, ids_b].double()
    expected = SimpleNamespace(
        log_a=logits_a.log_softmax(0),
        log_z_a=logits_a.logsumexp(0),
        log_b=logits_b.log_softmax(1),
        log_z_b=logits_b.logsumexp(1),
        log_p_a=full.log_p_a[ids_a].double().log_softmax(0),
        log_p_b=full.log_p_b[ids_b].double().log_softmax(0),
    )
    assert_same(some, expected)
    assert some.shape == (4, 6)
    assert torch.equal(some.tokens[0], ids_a) and torch.equal(some.tokens[1], ids_b)


def test_a_vocabulary_of_250002_runs_with_candidate_sets(monkeypatch):
    mlm = random_mlm("xlm-roberta", vocab_size=250_002, hidden_size=8)
    tables = mlmjoint.conditionals(mlm, PAIRS[0], tokens=([5, 249_999], [7, 250_001, 1]))
    assert tables.shape == (2, 3)
    monkeypatch.setattr(write, "free_memory", lambda device: 2**38)  # on any machine
    with pytest.raises(InputError, match=r"need 500\.0 GB .* give candidate sets"):
        mlmjoint.conditionals(mlm, PAIRS[0])


def test_out_is_overwritten_in_place_if_it_fits():
    mlm = random_mlm("bert")
    first, expected = (mlmjoint.conditionals(mlm, pair) for pair in PAIRS)
    second = mlmjoint.conditionals(mlm, PAIRS[1], out=first)
    assert second.log_a.data_ptr() == first.log_a.data_ptr()
    assert_same(second, expected, 0)
    with pytest.raises(InputError, match=r"out holds \(23, 23\) .* this pair needs \(2, 1\)"):
        mlmjoint.conditionals(mlm, PAIRS[0], out=first, tokens=([1, 2], [3]))


def test_dropout_is_off_and_each_module_returns_to_its_mode():
    mlm = random_mlm("bert")
    expected = mlmjoint.conditionals(mlm, PAIRS[0])
    mlm.model.train()
    mlm.model.bert.encoder.layer[0].eval()
    before = [module.training for module in mlm.model.modules()]
    assert_same(mlmjoint.conditionals(mlm, PAIRS[0]), expected, 0)
    assert [module.training for module in mlm.model.modules()] == before
    assert set(before) == {True, False}


def test_changed_weights_change_the_tables():
    mlm = random_mlm("bert")
    mlmjoint.conditionals(mlm, PAIRS[0])
    mlm.model.bert.encoder.layer[1].output.dense.weight.data.mul_(-1)
    assert_same(mlmjoint.conditionals(mlm, PAIRS[0]), slow_tables(mlm.model, PAIRS[0]))


def test_an_unknown_architecture_takes_the_plain_forward():
    mlm = random_mlm("bert")
    mlm.model.config.model_type = "unheard-of"
    with torch.inference_mode():
        assert choose_route(mlm.model, PAIRS[0].input_ids, (1, T - 2)).name == "plain"


def test_a_fast_route_that_disagrees_is_left_with_a_warning():
    mlm = random_mlm("bert")
    layer = mlm.model.bert.encoder.layer[0]

    class Louder(type(layer)):
        """Does more than its architecture says."""

        def forward(self, *args, **kwargs):
            return 1.5 * super().forward(*args, **kwargs)

    layer.__class__ = Louder
    with pytest.warns(UserWarning, match="the fast route of BertForMaskedLM differs .* slower one"):
        tables = mlmjoint.conditionals(mlm, PAIRS[0])
    assert_same(tables, slow_tables(mlm.model, PAIRS[0]))


@pytest.mark.parametrize("where", ["bert.encoder.layer.0", "cls.predictions.decoder", ""])
@pytest.mark.parametrize("how", ["hook", "pre-hook", "forward"])
def test_hooks_added_after_the_first_call_are_run(where, how):
    mlm = random_mlm("bert")
    mlmjoint.conditionals(mlm, PAIRS[0])
    part, heard = mlm.model.get_submodule(where), []
    if how == "hook":
        part.register_forward_hook(lambda *args: heard.append(1))
    elif how == "pre-hook":
        part.register_forward_pre_hook(lambda *args: heard.append(1))
    else:
        whole = part.forward
        part.forward = lambda *args, **kwargs: heard.append(1) or whole(*args, **kwargs)
    tables = mlmjoint.conditionals(mlm, PAIRS[0])
    assert len(heard) > 2
    assert_same(tables, slow_tables(mlm.model, PAIRS[0]))


class Adapter(nn.Linear):
    """A linear layer that adds something of its own, and still has the weight it was made with."""

    def __init__(self, whole: nn.Linear):
        super().__init__(whole.in_features, whole.out_features)
        self.weight, self.bias, self.own = whole.weight, whole.bias, nn.Parameter(torch.zeros(()))

    def forward(self, x):
        y = super().forward(x)
        return y + self.own * y.flip(-1)


@pytest.mark.parametrize(
    "where", ["bert.encoder.layer.1.attention.self.query", "cls.predictions.decoder"]
)
def test_an_adapter_put_in_later_counts(where):
    """With nothing learnt it agrees with what it replaces: no check of numbers finds it."""
    mlm = random_mlm("bert")
    mlmjoint.conditionals(mlm, PAIRS[0])
    parent, _, name = where.rpartition(".")
    adapter = Adapter(mlm.model.get_submodule(where))
    setattr(mlm.model.get_submodule(parent), name, adapter)
    mlmjoint.conditionals(mlm, PAIRS[0])
    with torch.no_grad():
        adapter.own += 0.3
    assert_same(mlmjoint.conditionals(mlm, PAIRS[0]), slow_tables(mlm.model, PAIRS[0]))


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2"])
def test_no_product_is_written_into_a_view(name, monkeypatch):
    """Metal before macOS 15 silently drops such a product (pytorch issue 104832)."""
    mlm = shared(name)
    expected = mlmjoint.conditionals(mlm, PAIRS[0], batch_size=7)

    def in_its_own_memory(product, *args, out=None, **options):
        assert out is None
        return product(*args, **options)

    for product in (torch.addmm, torch.baddbmm):
        monkeypatch.setattr(torch, product.__name__, partial(in_its_own_memory, product))
    assert_same(mlmjoint.conditionals(mlm, PAIRS[0], batch_size=7), expected)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_on_a_terminal_only(capfd, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    mlmjoint.conditionals(shared("bert"), PAIRS[0], progress=True)
    out, err = capfd.readouterr()
    assert out == "" and ("conditionals" in err) is terminal and bool(err) is terminal


# ------------------------------------------------------------------ bad input

BATCH = "batch_size is {}; give a positive whole number or 'auto'"
REFUSED = {
    "tokens must be 2 lists of token ids, one for each position": {"tokens": [1, 2, 3]},
    "ids_a = -1 lies outside 0..22": {"tokens": ([-1], [1])},
    "ids_b = 23 lies outside 0..22": {"tokens": ([1], [5, 23])},
    "ids_a holds 7 more than once; give each token id once": {"tokens": ([7, 5, 7], [1])},
    "ids_b has shape 0; give a non-empty list of token ids": {"tokens": ([1], torch.arange(0))},
    "ids_a has shape 1x2; give a non-empty list of token ids": {"tokens": ([[1, 2]], [1])},
    "ids_b = [1.5] must be whole numbers": {"tokens": ([1], [1.5])},
    "ids_a = ['man'] must be whole numbers": {"tokens": (["man"], [1])},
    **{BATCH.format(repr(size)): {"batch_size": size} for size in (0, 2.5, True, "large")},
    "unknown route 'quick'; choose one of fast, head, plain": {"route": "quick"},
    "no fast route for EsmForMaskedLM; leave route out": {"route": "fast"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_options(message):
    mlm = shared("esm" if "Esm" in message else "bert")
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        mlmjoint.conditionals(mlm, PAIRS[0], **REFUSED[message])


def test_pair_of_another_model():
    pair = make_pair(1, 3)
    pair.input_ids[3] = 9
    with pytest.raises(InputError, match=r"position 3 of the pair holds token id 9, not the mask"):
        mlmjoint.conditionals(shared("bert"), pair)
    pair.input_ids[5] = 30_000
    with pytest.raises(InputError, match=r"token id 30000, outside .* \(0 to 22\); make the pair"):
        mlmjoint.conditionals(shared("bert"), pair)


def test_more_predictions_than_embeddings():
    mlm = random_mlm("bert")
    mlm.vocab_size += 5
    with pytest.raises(InputError, match="predicts 28 tokens but embeds 23; give candidate sets"):
        mlmjoint.conditionals(mlm, PAIRS[0])
    with pytest.raises(InputError, match=r"ids_a = 25 lies outside 0\.\.22"):
        mlmjoint.conditionals(mlm, PAIRS[0], tokens=([25], [1]))


def test_pruned_heads_take_another_route():
    """As transformers 4 loads a folder whose configuration names pruned heads."""
    mlm = random_mlm("bert")
    attention = mlm.model.bert.encoder.layer[1].attention
    for part in (attention.self.query, attention.self.key, attention.self.value):
        part.weight, part.bias = nn.Parameter(part.weight[:24]), nn.Parameter(part.bias[:24])
    dense = attention.output.dense
    dense.weight = nn.Parameter(dense.weight[:, :24])
    attention.self.num_attention_heads, attention.self.all_head_size = 3, 24
    assert_same(mlmjoint.conditionals(mlm, PAIRS[0]), slow_tables(mlm.model, PAIRS[0]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_logit_that_is_not_finite_is_named(value):
    mlm = random_mlm("bert")
    mlm.model.cls.predictions.decoder.bias.data[11] = value
    with pytest.raises(InputError, match=rf"the logit of token 11 at position 1 is {value};"):
        mlmjoint.conditionals(mlm, PAIRS[0])


@pytest.mark.parametrize("route", ["fast", "head", "plain"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_token_that_breaks_the_logits_is_named(value, route):
    mlm = random_mlm("bert")
    decoder = mlm.model.cls.predictions.decoder
    decoder.weight = nn.Parameter(decoder.weight.detach().clone())  # not the embeddings
    mlm.model.bert.embeddings.word_embeddings.weight.data[13] = value
    mlm.tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda id_: f"word{id_}")
    pattern = r"a logit at position 1 with token 'word13' \(id 13\) at 7 is (nan|inf); the model"
    with pytest.raises(InputError, match=pattern):
        mlmjoint.conditionals(mlm, PAIRS[0], route=route)
