"""Losses of compatibility, against the tables of conditionals that they speak of."""

import pytest
import torch
from training_text import SENTENCES, truth_model

from mlmjoint import InputError, conditionals
from mlmjoint.text import ToyWorld
from mlmjoint.train import compatibility as losses
from mlmjoint.train.masking import MaskedBatches, UniformBatches, masked_loss
from mlmjoint.train.settings import Settings
from mlmjoint.train.train import train

QUICK = {"steps": 3, "batch_size": 8, "device": "cpu", "valid_fraction": 0.1}
TEXTS = ("the keys near the gate are broken .", "the old dog sleeps .")


@pytest.fixture(scope="module")
def inputs(toy):
    rows = [toy.encode(text) for text in TEXTS]
    longest = max(map(len, rows))
    texts = torch.tensor([ids + [0] * (longest - len(ids)) for ids in rows])
    return texts, (texts != 0).long(), torch.tensor([[2, 6], [2, 3]])


@pytest.fixture(scope="module")
def tables(toy):
    return [conditionals(toy, toy.pair(t, p)) for t, p in zip(TEXTS, ((2, 6), (2, 3)), strict=True)]


def test_the_order_gap_is_the_log_ratio_of_the_two_chains(toy, inputs, tables):
    gaps = losses.order_gap(toy.model, *inputs, toy.mask_token_id)
    for gap, t in zip(gaps, tables, strict=True):
        i, j = t.gold
        expected = t.log_p_a[i] + t.log_b[i, j] - t.log_p_b[j] - t.log_a[i, j]
        assert float(gap.detach()) == pytest.approx(float(expected), abs=1e-4)


def test_the_contradiction_is_that_of_the_four_contexts(toy, inputs, tables, monkeypatch):
    drawn = []
    draw = torch.multinomial
    monkeypatch.setattr(torch, "multinomial", lambda *x: drawn.append(draw(*x)) or drawn[-1])
    torch.manual_seed(0)
    gaps = losses.odds_contradiction(toy.model, *inputs, toy.mask_token_id)
    for row, (gap, t) in enumerate(zip(gaps, tables, strict=True)):
        (i, j), k, m = t.gold, int(drawn[0][row, 0]), int(drawn[1][row, 0])
        assert (k, m) != (i, j) and k != i and m != j
        log_c = t.log_a.double() - t.log_b.double()
        expected = log_c[i, j] + log_c[k, m] - log_c[k, j] - log_c[i, m]
        assert float(gap.detach()) == pytest.approx(float(expected), abs=1e-3)


def test_a_compatible_model_has_no_gap(inputs):
    texts, attended, _ = (x[:1] for x in inputs)
    pairs = torch.tensor([[5, 7]])  # gate, broken: any noun and any state go together
    torch.manual_seed(3)
    for gap in losses.GAPS.values():
        found = gap(truth_model(ToyWorld()), texts, attended, pairs, 4)
        assert float(found) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", ["order", "odds"])
def test_the_loss_adds_the_weighted_square(kind, tiny, tokenizer):
    tiny.eval()
    batch = losses.PairBatches(tokenizer, SENTENCES, Settings(batch_size=16), 0, 32)[0]
    chosen = batch["pairs"][:, 0] >= 0
    assert int(chosen.sum()) == 4
    a, b = batch["pairs"][chosen].T
    assert bool((a < b).all() & (a > 0).all())
    assert bool((b < batch["attention_mask"][chosen].sum(1) - 1).all())
    plain, count = masked_loss(tiny, batch)
    inputs = [batch[key][chosen] for key in ("texts", "attention_mask", "pairs")]
    torch.manual_seed(5)
    square = losses.GAPS[kind](tiny, *inputs, tokenizer.mask_token_id).square().mean()
    torch.manual_seed(5)
    total, number = losses.CompatibleLoss(kind, 0.5, tokenizer.mask_token_id)(tiny, batch)
    assert number == count
    torch.testing.assert_close(total, plain + 0.5 * count * square)
    total.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in tiny.parameters() if p.grad is not None)


def test_pairs_and_uniform_masks_are_drawn_of_the_same_texts(tokenizer):
    options = tokenizer, SENTENCES, Settings(batch_size=32), 0, 32
    plain, pairs, uniform = (
        kind(*options) for kind in (MaskedBatches, losses.PairBatches, UniformBatches)
    )
    rates = []
    for step in range(4):
        one, other, third = plain[step], pairs[step], uniform[step]
        assert torch.equal(one["input_ids"], other["input_ids"])
        texts = plain.rows(step)
        assert [
            t[: len(ids)].tolist() for t, ids in zip(other["texts"], texts, strict=True)
        ] == texts
        chosen = third["labels"] != -100
        whole = torch.where(chosen, third["labels"], third["input_ids"])
        assert torch.equal(whole, other["texts"])
        rates += [float(row.sum()) / (len(ids) - 2) for row, ids in zip(chosen, texts, strict=True)]
        again = uniform[step]["input_ids"]
        assert torch.equal(again, third["input_ids"])
    assert min(rates) < 0.15 and max(rates) > 0.85
    assert 0.4 < sum(rates) / len(rates) < 0.6


def test_the_command_trains_on_from_a_model(text_file, tmp_path):
    train([str(text_file)], tmp_path / "first", **QUICK)
    options = {"start": str(tmp_path / "first"), **QUICK}
    card = train([str(text_file)], tmp_path / "order", compatibility="order", **options)
    assert "--compatibility order" in card["command"]
    text = (tmp_path / "order" / "README.md").read_text()
    assert (
        "It began with the weights of first." in text and "0.1 times the mean squared order" in text
    )
    assert str(tmp_path) not in text
    train([str(text_file)], tmp_path / "uniform", masking="uniform", **options)
    assert "uniformly between 0 and 1" in (tmp_path / "uniform" / "README.md").read_text()
    with pytest.raises(InputError, match="another compatibility_weight"):
        change = {"compatibility": "order", "compatibility_weight": 1.0}
        train([str(text_file)], tmp_path / "order", **change, **options)
