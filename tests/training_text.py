"""What the tests of training train on: a few sentences, their tokenizer, a tiny model."""

import pytest

NOUNS = ("dog", "cat", "man", "girl", "boy", "horse", "bird", "child")
VERBS = ("runs", "sleeps", "jumps", "sings", "waits", "plays")
PLACES = ("park", "street", "house", "garden", "snow")
SENTENCES = [f"A {n} {v} in the {p}." for p in PLACES for n in NOUNS for v in VERBS]


@pytest.fixture(scope="session")
def tokenizer():
    from mlmjoint.train.recipes import learn_wordpiece

    return learn_wordpiece(SENTENCES, 200, 32)


@pytest.fixture
def tiny(tokenizer):
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 32, "tie_word_embeddings": True}
    return BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes))


def truth_model(world):
    """A perfect MLM: at one mask or two its logits are the toy grammar's distributions."""
    import torch

    class Truth(torch.nn.Module):
        config = type("Config", (), {"model_type": "truth"})

        def forward(self, input_ids, attention_mask):
            logits = torch.zeros(*input_ids.shape, len(world.vocab), dtype=torch.float64)
            for row, ids in enumerate(input_ids):
                ids = ids[: int(attention_mask[row].sum())].tolist()
                masks = [t for t, token in enumerate(ids) if token == world.ids["[MASK]"]]
                if len(masks) == 2:
                    joint = world.true_joint(ids, *masks)
                    logits[row, masks[0]] = joint.logsumexp(1)
                    logits[row, masks[1]] = joint.logsumexp(0)
                else:
                    logits[row, masks[0]] = world.true_conditional(ids, masks[0])
            return type("Output", (), {"logits": logits.clamp_min(-700)})

    return Truth()


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path
