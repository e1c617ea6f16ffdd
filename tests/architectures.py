"""Small random models of every architecture that the package knows."""

from types import SimpleNamespace

import torch
import transformers

V, MASK = 23, 4
SMALL = {
    "vocab_size": V,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    "initializer_range": 0.3,
}
ROBERTA = {**SMALL, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "type_vocab_size": 1}
MOBILE = {**SMALL, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}
DEBERTA = {**SMALL, "pos_att_type": ["p2c", "c2p"], "relative_attention": True}
DEBERTA["type_vocab_size"] = 0
MODERN = {**SMALL, "global_attn_every_n_layers": 2, "local_attention": 4, "pad_token_id": 0}
MODERN.update(bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
ESM = {**SMALL, "pad_token_id": 1, "mask_token_id": MASK, "position_embedding_type": "rotary"}

TWO_RELU = {**SMALL, "num_hidden_layers": 2, "hidden_act": "relu"}
ALBERT = {**SMALL, "embedding_size": 16, "num_hidden_groups": 1}
GROUPS = {**ALBERT, "num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 4}
DROPPED = {**ESM, "token_dropout": True, "emb_layer_norm_before": False}
ABSOLUTE = {**ESM, "position_embedding_type": "absolute", "emb_layer_norm_before": True}

# name: configuration class, its settings, the route it should take
ARCHITECTURES = {
    "bert": ("BertConfig", SMALL, "fast"),
    "bert-1-layer": ("BertConfig", {**SMALL, "num_hidden_layers": 1}, "fast"),
    "bert-2-layers-relu": ("BertConfig", TWO_RELU, "fast"),
    "roberta": ("RobertaConfig", ROBERTA, "fast"),
    "xlm-roberta": ("XLMRobertaConfig", ROBERTA, "fast"),
    "camembert": ("CamembertConfig", ROBERTA, "fast"),
    "distilbert": ("DistilBertConfig", {**SMALL, "hidden_dim": 48}, "fast"),
    "albert": ("AlbertConfig", ALBERT, "fast"),
    "albert-groups": ("AlbertConfig", GROUPS, "fast"),
    "electra": ("ElectraConfig", {**SMALL, "embedding_size": 16}, "fast"),
    "electra-square": ("ElectraConfig", {**SMALL, "embedding_size": 32}, "fast"),
    "mobilebert": ("MobileBertConfig", MOBILE, "head"),
    "deberta-v2": ("DebertaV2Config", DEBERTA, "head"),
    "deberta-v2-new-head": ("DebertaV2Config", {**DEBERTA, "legacy": False}, "head"),
    "modernbert": ("ModernBertConfig", MODERN, "head"),
    "esm": ("EsmConfig", DROPPED, "head"),
    "esm-absolute": ("EsmConfig", ABSOLUTE, "head"),
}


def random_mlm(name, **changes):
    """What conditionals() needs of an MLM: a small random model. Its biases and norms are random
    too, so that each must be used."""
    kind, settings, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**settings, **changes})
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    vocab_size = config.vocab_size
    return SimpleNamespace(model=model, tokenizer=None, vocab_size=vocab_size, mask_token_id=MASK)
