"""The encoder that is written out against transformers, which computes the same with other code."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertLMHeadModel

import mlmjoint
from mlmjoint.errors import InputError
from mlmjoint.tasks import Encoder

TEXTS = ("A man is walking down the street.", "Two dogs are running across a green field.")


@pytest.fixture(scope="module")
def english():
    mlm = mlmjoint.load("en-small", device="cpu", dtype="float64")  # no rounding to allow for
    mlm.model.set_attn_implementation("eager")
    batch = dict(mlm.tokenizer(list(TEXTS), padding=True, return_tensors="pt"))
    batch["token_type_ids"] = (torch.arange(batch["input_ids"].shape[1]) > 4).long().expand(2, -1)
    assert not batch["attention_mask"].all()  # one text is padded
    return mlm, batch


def test_every_layer_agrees_with_transformers(english):
    mlm, batch = english
    encoder, real = Encoder(mlm.model), batch["attention_mask"].bool()
    with torch.inference_mode():
        theirs = mlm.model(**batch, output_hidden_states=True, output_attentions=True)
        ours = encoder(batch["input_ids"], batch["token_type_ids"], real=real)
        logits = encoder.logits(ours.hidden[-1])
    assert len(ours.hidden) == len(theirs.hidden_states) == 5
    for a, b in zip(ours.hidden, theirs.hidden_states, strict=True):
        assert (a - b)[real].abs().max() < 1e-9
    for a, b in zip(ours.attention, theirs.attentions, strict=True):
        assert (a - b).abs().max() < 1e-9
    assert (logits - theirs.logits)[real].abs().max() < 1e-9


def test_causal_mask_is_that_of_a_decoder(english):
    mlm, batch = english
    config = copy.deepcopy(mlm.model.config)
    config.is_decoder = True
    decoder = BertLMHeadModel(config).double().eval()
    decoder.load_state_dict(mlm.model.state_dict())
    ids = batch["input_ids"][1:]  # the longer one
    encoder = Encoder(mlm.model)
    with torch.inference_mode():
        ours = encoder(ids, causal=True)
        logits, theirs = encoder.logits(ours.hidden[-1]), decoder(input_ids=ids).logits
        start = encoder(ids[:, :5], causal=True).hidden[-1]
        both = encoder(ids[:, :5]).hidden[-1]
    assert (logits - theirs).abs().max() < 1e-9
    # What stands to the right changes nothing to the left; without the mask it does.
    assert (ours.hidden[-1][:, :5] - start).abs().max() < 1e-9
    assert (encoder(ids).hidden[-1][:, :5] - both).abs().max() > 0.1
    for scores, attention in zip(ours.scores, ours.attention, strict=True):
        masked = torch.ones_like(scores).triu(1).bool()
        assert (scores[masked] == -torch.inf).all() and (attention[masked] == 0).all()
        assert torch.isfinite(scores[~masked]).all()
        assert (attention.sum(-1) - 1).abs().max() < 1e-6


def test_gradients_are_those_of_the_model():
    model = mlmjoint.load("toy", device="cpu").model
    ids = torch.tensor([[1, 7, 8, 9]])
    grads = []
    for loss in (
        Encoder(model).logits(Encoder(model)(ids).hidden[-1]).logsumexp(-1).sum(),
        model(input_ids=ids).logits.logsumexp(-1).sum(),
    ):
        model.zero_grad()
        loss.backward()
        grads.append([p.grad.clone() for p in model.bert.parameters()])
    for ours, theirs in zip(*grads, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * (1 + theirs.abs().max())


def test_another_architecture_is_refused():
    config = AutoConfig.for_model(
        "roberta", vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"roberta .*; give a BERT"):
        Encoder(AutoModelForMaskedLM.from_config(config))
