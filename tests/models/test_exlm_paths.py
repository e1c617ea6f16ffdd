"""ExLM against the enumeration of its paths, one by one."""

import itertools
import math

import pytest
import torch

from mlmjoint import Pair, conditionals, exlm_joint
from mlmjoint.errors import InputError
from mlmjoint.models import ExLM, ExLMConfig
from mlmjoint.models.mlm import MLM
from mlmjoint.models.paths import LINKS
from mlmjoint.train.masking import masked_loss, path_loss

PAD, CLS, SEP, MASK, V = 0, 2, 3, 4, 9
SENTENCES = [  # three, one and no masks
    ([CLS, MASK, 5, MASK, MASK, SEP], [-100, 6, -100, 8, 5, -100]),
    ([CLS, 7, MASK, SEP], [-100, -100, 5, -100]),
    ([CLS, 6, 7, 8, SEP], [-100] * 5),
]


def make(links, k, embedding=0.5, seed=0, vocab_size=V):
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
    sizes |= {"state_embedding": embedding, "initializer_range": 0.3}
    config = ExLMConfig(vocab_size, hidden_size=16, states=k, links=links, **sizes)
    return ExLM(config).double().eval()


def batch(rows):
    longest = max(len(ids) for ids, _ in rows)
    return {
        "input_ids": torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in rows]),
        "attention_mask": torch.tensor(
            [[int(t < len(x)) for t in range(longest)] for x, _ in rows]
        ),
        "labels": torch.tensor([y + [-100] * (longest - len(y)) for _, y in rows]),
    }


def may_follow(links, u, v):
    """States are (number of the anchor or mask, copy)."""
    if links == "chain":
        return v[0] == u[0] + 1
    return v[0] > u[0] if links == "sparse" else v > u


@torch.no_grad()
def enumerate_paths(model, ids, gold):
    """[(states, log-probability)] of every path of a sentence with len(gold) masks."""
    k, links, masks = model.config.states, model.config.links, len(gold)
    graph = model.graph(torch.tensor([ids]))
    hidden = model.encode(graph)
    link = model.links(hidden, graph)[0]
    log_p = model.state_log_probs(hidden, graph)[0].flatten(0, 1)  # (S, V)
    copies = {
        group: k if links == "dense" or 0 < group <= masks else 1 for group in range(masks + 2)
    }
    states = [(group, copy) for group in copies for copy in range(copies[group])]
    # The model keeps the last anchor in the second place.
    row = {(g, c): {0: 0, masks + 1: 1}.get(g, g + 1) * k + c for g, c in states}
    start, end = (0, 0), (masks + 1, copies[masks + 1] - 1)
    for u in states:
        allowed = [v for v in states if may_follow(links, u, v)]
        assert math.isclose(float(link[row[u]].sum()), len(allowed) > 0, abs_tol=1e-9)
        assert all(float(link[row[u], row[v]]) > 0 for v in allowed)
        assert all(float(link[row[u], row[v]]) == 0 for v in {*states} - {*allowed})
    paths = []
    for middle in itertools.product(states, repeat=masks):
        path = start, *middle, end
        if all(may_follow(links, u, v) for u, v in itertools.pairwise(path)):
            steps = sum(link[row[u], row[v]].log() for u, v in itertools.pairwise(path))
            paths.append(
                (middle, steps + sum(log_p[row[u], y] for u, y in zip(middle, gold, strict=True)))
            )
    return paths


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("links", LINKS)
def test_the_likelihood_is_the_sum_over_all_paths(links, k):
    model = make(links, k)
    found = model.log_likelihood(**batch(SENTENCES))
    for value, (ids, labels) in zip(found, SENTENCES, strict=True):
        paths = enumerate_paths(model, ids, [y for y in labels if y != -100])
        expected = torch.stack([log_p for _, log_p in paths]).logsumexp(0)
        assert math.isclose(float(value.detach()), float(expected), abs_tol=1e-6)
        if links == "chain":
            assert len(paths) == k ** (len(labels) - labels.count(-100))


@pytest.mark.parametrize("links", LINKS)
def test_the_gradient_is_that_of_finite_differences(links):
    model = make(links, 3)
    value = model.log_likelihood(**batch(SENTENCES)).sum()
    model.zero_grad()
    value.backward()
    torch.manual_seed(1)
    names = [name for name, weight in model.named_parameters() if weight.grad is not None]
    assert {"link_gate.weight", "link_key.weight", "copy_words.weight", "bias"} <= {*names}
    for name in names:
        weight = model.get_parameter(name)
        along, eps = torch.randn_like(weight), 1e-5
        values = []
        with torch.no_grad():
            for step in (eps, -2 * eps, eps):
                weight += step * along
                values.append(float(model.log_likelihood(**batch(SENTENCES)).sum()))
        slope = (values[0] - values[1]) / (2 * eps)
        assert math.isclose(
            float((weight.grad * along).sum()), slope, rel_tol=1e-4, abs_tol=1e-6
        ), name


def test_one_state_in_a_chain_is_a_plain_masked_language_model():
    model = make("chain", 1)
    (loss, count), (plain, number) = (f(model, batch(SENTENCES)) for f in (path_loss, masked_loss))
    assert count == number == 4 and math.isclose(float(loss), float(plain), rel_tol=1e-6)


@pytest.mark.parametrize("links", LINKS)
def test_padding_and_the_order_of_a_batch_do_not_matter(links):
    model = make(links, 2)
    together = model.log_likelihood(**batch(SENTENCES))
    torch.testing.assert_close(model.log_likelihood(**batch(SENTENCES[::-1])).flip(0), together)
    for value, row in zip(together, SENTENCES, strict=True):
        torch.testing.assert_close(model.log_likelihood(**batch([row]))[0], value)
    inputs = {key: batch(SENTENCES)[key] for key in ("input_ids", "attention_mask")}
    logits = model(**inputs).logits
    for row, (ids, _) in zip(logits, SENTENCES, strict=True):
        alone = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(row[: len(ids)], alone)


@pytest.mark.parametrize("links", ["sparse", "chain"])
def test_copies_in_another_order_are_the_same_states_in_another_order(links, monkeypatch):
    model = make(links, 3)
    expected, build = model.log_likelihood(**batch(SENTENCES)), model.graph
    swap = torch.tensor([0, 2, 3, 1])  # of copy numbers; 0 is that of tokens which have no copies

    def permuted(*inputs):
        graph = build(*inputs)
        return graph._replace(copies=swap[graph.copies])

    plain = model.encode(build(torch.tensor([SENTENCES[1][0]])))[0, 2:5]
    monkeypatch.setattr(model, "graph", permuted)
    turned = model.encode(permuted(torch.tensor([SENTENCES[1][0]])))[0, 2:5]
    torch.testing.assert_close(turned, plain[[1, 2, 0]])
    torch.testing.assert_close(model.log_likelihood(**batch(SENTENCES)), expected)


@pytest.mark.parametrize("links", LINKS)
def test_the_joint_of_two_masks_is_normalised_over_the_toy_vocabulary(links, toy):
    mlm = MLM(make(links, 3, vocab_size=262), toy.tokenizer, "exlm", toy.device, 262, 16)
    pair = mlm.pair("the keys near the gate are broken .", (2, 6))
    joint = exlm_joint(mlm, pair)
    assert math.isclose(float(joint.log_table().exp().sum()), 1, abs_tol=1e-9)
    # Its marginals are what the model says of each mask: of them the other constructions are made.
    tables = conditionals(mlm, Pair(pair.input_ids, pair.positions), tokens=([5, 9], [6, 7]))
    for side, log_p in enumerate((tables.log_p_a, tables.log_p_b)):
        kept = joint.log_marginals()[side][tables.tokens[side]]
        torch.testing.assert_close(kept.log_softmax(0), log_p, atol=1e-6, rtol=0)
    paths = enumerate_paths(mlm.model, pair.input_ids.tolist(), list(pair.gold))
    aligned = [log_p for states, log_p in paths if [g for g, _ in states] == [1, 2]]
    assert len(aligned) == 9
    gold = float(torch.stack(aligned).logsumexp(0)) - math.log(joint.mass)
    assert math.isclose(joint.log_prob(*pair.gold), gold, abs_tol=1e-6)
    assert joint.mass == pytest.approx(1) if links == "chain" else 0 < joint.mass < 1


def test_another_model_or_another_number_of_masks_is_refused(toy):
    pair = toy.pair("the [MASK] near the gate [MASK] broken .")
    with pytest.raises(InputError, match="toy is a BertForMaskedLM, not an ExLM"):
        exlm_joint(toy, pair)
    mlm = MLM(make("chain", 2, vocab_size=262), toy.tokenizer, "exlm", toy.device, 262, 16)
    with pytest.raises(InputError, match="1 masks; give one of exactly two"):
        exlm_joint(mlm, Pair(pair.input_ids[2:], (0, 4)))
    with pytest.raises(InputError, match="links 'star'; choose one of dense"):
        ExLMConfig(links="star")
    with pytest.raises(InputError, match="hidden_size is 20"):
        ExLMConfig(hidden_size=20)
