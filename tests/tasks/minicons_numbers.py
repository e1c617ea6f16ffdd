"""minicons' token scores on small models, stored in minicons.json for test_score.py.

PYTHON tests/tasks/minicons_numbers.py, with a Python of an environment that has minicons and this
repository's transformers (minicons is not a dependency of the project). Prints the file.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

METHODS = {"pll": "original", "pll-word": "within_word_l2r"}
ROOT = Path(__file__).resolve().parents[2]
SENTENCES = [
    "A man is walking down the street.",
    "Two skateboarders are jumping over the unfinished stairway.",
    "The children's snowballs hit a snowman, again and again!",
    "Nobody sleeps.",
    "An old woman reads the newspaper in a rocking chair near the window while it rains.",
    "Dogs, cats and horses run.",
]
PIECES = ["a", "the", "man", "is", "walk", "##ing", "down", "street", "dog", "##s", "cat", "and"]
PIECES += ["run", "snow", "##ball", "##man", "##er", "read", "child", "##ren", "over", "near", "an"]
PIECES += ["it", "in", "while", "old", "woman", "jump", "are", ".", ",", "!", "'", "s", "again"]


def save(kind: str, folder: Path) -> Path:
    """A BERT, RoBERTa or DistilBERT of two layers whose weights are sines: the same everywhere."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    names = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]  # the padding id is RoBERTa's
    words = {word: k for k, word in enumerate([*names, *PIECES])}
    backend = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    roles = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    tokens = dict(zip(roles, names, strict=True))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **tokens
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32}
    if kind == "DistilBert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(words), max_position_embeddings=40, pad_token_id=1, **sizes
    )
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    with torch.no_grad():
        for k, weight in enumerate(model.parameters()):
            wave = torch.arange(weight.numel(), dtype=torch.float64) * (1.7 + 0.31 * k)
            weight.copy_((0.4 * torch.sin(wave * wave.sqrt())).view_as(weight))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:

    import transformers
    from minicons import scorer

    # The name under which minicons calls a tokenizer is gone in version 5 of transformers.
    base = transformers.PreTrainedTokenizerBase
    base.batch_encode_plus = lambda self, *args, **options: self(*args, **options)
    scores = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {"en-small": ROOT / "mlmjoint/data/models/en-small"}
        for kind in ("Bert", "Roberta", "DistilBert"):
            folders[kind] = save(kind, Path(scratch) / kind)
        for name, folder in folders.items():
            model = scorer.MaskedLMScorer(str(folder), "cpu", dtype=torch.float32)
            scores[name] = {}
            for method, metric in METHODS.items():
                parts = model.compute_stats(model.prepare_text(SENTENCES, PLL_metric=metric))
                scores[name][method] = [[round(v, 6) for v in row] for row in parts]
    from importlib.metadata import version

    versions = {name: version(name) for name in ("minicons", "transformers", "torch")}
    json.dump({"versions": versions, "scores": scores}, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
