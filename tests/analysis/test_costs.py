"""Costs: the formulas against counted operations, and the stored measurements."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    RobertaConfig,
)

import mlmjoint
from benchmarks.baseline import fill_table
from book.make.page_models import SHIP_MB
from mlmjoint import files
from mlmjoint.analysis import costs
from mlmjoint.analysis.costs import Shape, fast_flops, plain_flops
from mlmjoint.engine.passes import balance
from mlmjoint.errors import InputError

VOCAB = 61


def config(kind, layers, width=24, heads=3, inner=40, **more):
    sizes = (layers, width, heads, inner)
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    if kind is DistilBertConfig:
        names = ("n_layers", "dim", "n_heads", "hidden_dim")
    return kind(vocab_size=VOCAB, **dict(zip(names, sizes, strict=True)), **more)


CONFIGS = {
    "bert-1": config(BertConfig, 1),
    "bert-2": config(BertConfig, 2),
    "bert-5": config(BertConfig, 5, width=32, heads=4, inner=128),
    "albert": config(AlbertConfig, 3, embedding_size=16),
    "albert-2": config(AlbertConfig, 2, embedding_size=16, num_hidden_groups=2, inner_group_num=2),
    "electra": config(ElectraConfig, 3, embedding_size=16),
    "distilbert": config(DistilBertConfig, 3),
    "roberta": config(RobertaConfig, 3),
}


def a_pair(length: int) -> mlmjoint.Pair:
    ids = torch.arange(10, 10 + length)
    ids[2], ids[length - 2] = 4, 4
    return mlmjoint.Pair(ids, (2, length - 2), (5, 6))


def counted(function) -> int:
    """Operations of all products; attention by its plain formula, which the counter sees."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_formulas_count_what_the_fast_route_and_the_published_procedure_do(name):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(CONFIGS[name]).eval().double()  # by torch's products
    mlm = SimpleNamespace(model=model, tokenizer=None, vocab_size=VOCAB, mask_token_id=4)
    shape, pair = Shape.of(CONFIGS[name]), a_pair(8)
    for length in (5, 12):
        found = counted(lambda n=length: mlmjoint.conditionals(mlm, a_pair(n), route="fast"))
        expected = fast_flops(shape, length)
        # RoBERTa: writing the padding token moves all positions, so that sequence runs in full.
        assert expected < found < 1.05 * expected if name == "roberta" else found == expected
    if name == "bert-5":
        sets = torch.arange(7), torch.arange(3, 20)
        found = counted(lambda: mlmjoint.conditionals(mlm, pair, tokens=sets, route="fast"))
        assert found == fast_flops(shape, 8, (7, 17))

    def published():
        a, b = pair.positions
        table, tokens = torch.empty(VOCAB, VOCAB, dtype=torch.float64), torch.arange(VOCAB)
        fill_table(model, pair.input_ids, a, b, tokens, table, by_row=False)
        fill_table(model, pair.input_ids, b, a, tokens, table, by_row=True)
        with torch.inference_mode():
            model(input_ids=pair.input_ids[None])  # both masked

    assert counted(published) == plain_flops(shape, 8)


def test_unknown_architecture_is_named():
    with pytest.raises(InputError, match="no cost formula for model type 'modernbert'"):
        Shape.of({"model_type": "modernbert"})


def test_memory_of_a_pair():
    assert costs.KEPT_Q == balance.CACHE_BYTES  # the solver's own bound
    assert costs.pair_bytes(1000) == 8_000_000
    assert costs.pair_bytes((10, 20), kept_q=True) == 3 * 4 * 200
    assert costs.pair_bytes(30_522, kept_q=True) == costs.pair_bytes(30_522) < 16e9
    largest = costs.largest_vocabulary(16e9)
    assert costs.pair_bytes(largest) <= 16e9 < costs.pair_bytes(largest + 1)


def test_totals_are_sums_over_rates():
    assert costs.mean_over({"2": 1, "4": 3}, lambda t: t * t) == (4 + 3 * 16) / 4
    gpu = costs.Gpu("unit", "float32", flops=1e12, bandwidth=1e9)
    assert costs.gpu_hours(1000, 7.2e12, 3.6e9, gpu, share=0.5) == pytest.approx((4.0, 2.0))
    rows = [{"V": 100, "five": 1.0, "study": 4.0}, {"V": 50, "five": 9.0, "study": 9.0}]
    assert [costs.joint_seconds(rows, work, 300) for work in costs.WORKS] == [9.0, 36.0]
    cells = costs.paper_cells()
    assert len(cells) == 8 and all(row["plain"] > row["fast"] > 1e13 for row in cells)


class TestMeasured:
    def test_repository_first_then_the_wheel(self, tmp_path, monkeypatch):
        assert [place.parent.name for place in files.MEASUREMENTS] == ["benchmarks", "data"]
        places = tmp_path / "clone", tmp_path / "wheel"
        monkeypatch.setattr(files, "MEASUREMENTS", places)
        for place in reversed(places):
            place.mkdir()
            (place / "x.json").write_text(f'{{"from": "{place.name}"}}')
            assert costs.measured("x") == {"from": place.name}
        with pytest.raises(InputError, match=r"no measurements 'nothing'.*make bench"):
            costs.measured("nothing")

    def test_everything_was_measured_with_the_models_that_are_shipped(self):
        shipped = {n: mlmjoint.load(n, device="cpu").fingerprint for n in ("toy", "en-small")}
        for name in ("candidates", "sizes"):
            held = costs.measured(name)
            assert held["fingerprint"] == shipped[held["model"]], f"run benchmarks.{name} again"
        for row in costs.measured("passes")["rows"]:
            name = re.search(r"1e-5: ([\w-]+),", row["work"])[1]
            if name in shipped:
                assert row["numbers"]["fingerprint"] == shipped[name], "run bench_passes again"

    def test_the_shipped_size_is_the_best_of_those_small_enough(self):
        held = costs.measured("sizes")
        fit = [one for one in held["sizes"] if one["bytes"] <= SHIP_MB * 1e6]
        best = min(fit, key=lambda one: one["uppl"])
        shape = costs.SHAPES[held["model"]]
        assert (best["layers"], best["V"]) == (shape.layers, shape.vocab)
