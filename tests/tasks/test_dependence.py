"""Mutual information against the whole table, the matrix against each pair, proxies by hand."""

import itertools

import pytest
import torch

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.core.pairs import Pair
from mlmjoint.errors import InputError
from mlmjoint.models.pair_head import load_head, pair_joint
from mlmjoint.tasks.dependence import PROXIES, information_matrix, mutual_information, proxies

TEXT = "[MASK] [MASK] near the gate [MASK] broken ."


def by_definition(q):
    p = q.log_table().double().exp()
    p = p / p.sum()
    return float(torch.special.xlogy(p, p / (p.sum(1, keepdim=True) * p.sum(0))).sum())


@pytest.mark.parametrize("method", ["mlm", "ag", "head"])
def test_mutual_information(toy, method):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    if method == "head":
        q = pair_joint(toy, load_head("toy"), pair)
    else:
        q = mlmjoint.joint(mlmjoint.conditionals(toy, pair), method)
    assert mutual_information(q) == pytest.approx(by_definition(q), abs=1e-5)
    assert (mutual_information(q) < 1e-9) == (method == "mlm")


@pytest.mark.parametrize("exact", [False, True])
def test_the_matrix_has_every_pair_with_the_others_masked(toy, exact):
    ids, masks = torch.tensor(toy.encode(TEXT)), [1, 2, 6]
    head = None if exact else load_head("toy")
    matrix = information_matrix(toy, ids, masks, head, k=20)
    assert torch.equal(matrix, matrix.T) and not matrix.diagonal().any()
    for (s, a), (t, b) in itertools.combinations(enumerate(masks), 2):
        pair = Pair(ids, (a, b))
        if exact:
            tables = mlmjoint.conditionals(toy, pair, tokens=toy.candidates(pair, 20))
            q = mlmjoint.joint(tables, "ag")
        else:
            q = pair_joint(toy, head, pair)
        assert float(matrix[s, t]) == pytest.approx(mutual_information(q), abs=1e-6)
    with pytest.raises(InputError, match="write at least two"):
        information_matrix(toy, ids, [1], head)


def test_proxies_by_hand(toy):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    found = proxies(toy, pair)
    assert tuple(found) == PROXIES and all(value >= 0 for value in found.values())
    tables = mlmjoint.conditionals(toy, pair)
    p_a, p_b = tables.log_p_a.exp(), tables.log_p_b.exp()
    i, j = int(p_a.argmax()), int(p_b.argmax())
    drift = (tables.log_b[i].exp() * (tables.log_b[i] - tables.log_p_b)).sum()
    drift += (tables.log_a[:, j].exp() * (tables.log_a[:, j] - tables.log_p_a)).sum()
    assert found["drift"] == pytest.approx(float(drift), abs=1e-4)
    assert found["confidence"] == pytest.approx(1 - float(p_a.max() * p_b.max()), abs=1e-5)
    entropies = torch.special.entr(torch.stack([p_a, p_b])).sum(1)
    assert found["entropy"] == pytest.approx(float(entropies.prod()), rel=1e-4)
    weights = toy.model.config._attn_implementation
    assert proxies(toy, pair) == pytest.approx(found, rel=1e-4)
    assert toy.model.config._attn_implementation == weights


def test_the_jacobian_is_the_slope_of_a_log_probability(toy):
    """The norm of the differences that a small step along each axis of one embedding makes."""
    model = mlmjoint.load("toy", device="cpu", dtype="float64").model
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    x, total, step = model.get_input_embeddings()(pair.input_ids[None]).detach(), 0.0, 1e-6
    for source, target in ((2, 6), (6, 2)):
        moved = x.repeat(x.shape[-1] + 1, 1, 1)  # (E + 1, T, E); the last is not moved
        moved[:-1, source] += step * torch.eye(x.shape[-1], dtype=x.dtype)
        with torch.inference_mode():
            log_p = model(inputs_embeds=moved).logits[:, target].log_softmax(-1)
        slopes = (log_p[:-1] - log_p[-1])[:, log_p[-1].argmax()] / step
        total += float(slopes.norm())
    assert proxies(toy, pair)["jacobian"] == pytest.approx(total, rel=1e-3)


def test_the_command_prints_and_draws(toy, capsys, tmp_path):
    words = ["dependence", TEXT, "--model", "toy", "--device", "cpu"]
    assert main([*words, "--heatmap", str(tmp_path / "matrix.svg")]) == 0
    shown = capsys.readouterr().out
    matrix = information_matrix(toy, toy.encode(TEXT), [1, 2, 6], load_head("toy"))
    assert shown.count(f"{float(matrix[0, 2]):.4f}") == 2 and "one pass" in shown
    assert (tmp_path / "matrix.svg").stat().st_size > 1000
    assert main([*words, "--exact", "--top-k", "20"]) == 0
    assert "exact, AG" in capsys.readouterr().out
    assert main([*words, "--exact", "--head", "toy"]) == 2
    assert main(["dependence", "the [MASK] .", "--model", "toy"]) == 2
    assert "write at least two [MASK]" in capsys.readouterr().err
