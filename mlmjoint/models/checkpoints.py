"""Read a masked language model from a folder or the hub; refuse what is damaged or foreign."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from pathlib import Path

from .. import files
from ..errors import InputError

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*bpe.codes")
# Weights that may lack in a sound checkpoint: no logit depends on them.
HARMLESS = re.compile(r"contact_head\.|pooler\.|position_ids$|inv_freq$")


def read_folder(folder: Path, name: str, dtype):
    """The model, the tokenizer and the weight files of a folder written by ``save_pretrained``."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoModelForMaskedLM

    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json; give a folder written by save_pretrained")
    config = _guard(
        lambda: AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True),
        f"the config.json of {name} cannot be used",
        "only architectures that are part of transformers are loaded",
    )
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING or getattr(config, "is_decoder", False):
        kind = "causal model" if getattr(config, "is_decoder", False) else "model"
        raise InputError(
            f"{name} is a {config.model_type} {kind}, not a masked language model; "
            "choose one that AutoModelForMaskedLM knows, such as bert or roberta"
        )
    files = weight_files(folder, name)
    with quiet():
        for file in files:
            _check_weights(file)
    tokenizer = _read_tokenizer(folder, name)
    with quiet():
        model, report = _guard(
            lambda: AutoModelForMaskedLM.from_pretrained(
                folder,
                config=config,
                use_safetensors=files[0].suffix == ".safetensors",
                weights_only=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **_dtype_argument(dtype),
            ),
            f"the weights of {name} do not load",
            "the checkpoint is damaged, or belongs to another architecture than its config.json",
        )
    missing = sorted(key for key in report["missing_keys"] if not HARMLESS.search(key))
    if missing:
        raise InputError(
            f"{name} lacks {len(missing)} weights of {type(model).__name__} ({missing[0]}, ...); "
            "random ones are no model, choose a checkpoint that was saved with its MLM head"
        )
    return model.eval(), tokenizer, files


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files the weights lie in, safetensors before .bin, shards in order."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).is_file():
            return [folder / single]
        index = folder / f"{single}.index.json"
        if index.is_file():
            shards = _guard(
                lambda path=index: json.loads(path.read_text(encoding="utf-8"))["weight_map"],
                f"{index} cannot be read",
                "download the folder again",
            )
            files = [folder / shard for shard in sorted(set(shards.values()))]
            for file in files:
                if not file.is_file():
                    raise InputError(
                        f"{name} lacks the shard {file.name}; download the folder again"
                    )
            return files
    raise InputError(f"{folder} has neither model.safetensors nor pytorch_model.bin; save it again")


def fingerprint(weights: list[Path]) -> str:
    """SHA-256 of the one weight file, or of the digests of all shards in order."""
    digests = [files.sha256(file) for file in weights]
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def _read_tokenizer(folder: Path, name: str):
    from transformers import AutoTokenizer

    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise InputError(f"{folder} has no tokenizer; save it there with tokenizer.save_pretrained")
    with quiet():
        tokenizer = _guard(
            lambda: AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            ),
            f"the tokenizer of {name} does not load",
            "save it again with tokenizer.save_pretrained",
        )
    if tokenizer.mask_token is None or tokenizer.mask_token_id is None:
        raise InputError(
            f"the tokenizer of {name} has no mask token; choose a masked language model"
        )
    return tokenizer


def _check_weights(file: Path) -> None:
    """Open a file the safe way once, so that a truncated or booby-trapped one is named as such."""
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        _guard(
            lambda: safe_open(file, framework="pt").__enter__(),
            f"{file} is damaged or no safetensors file",
            "download or save it again",
        )
    else:
        import torch

        _guard(
            lambda: torch.load(file, map_location="meta", weights_only=True),
            f"{file} is damaged or holds more than weights",
            "a pickle that could run code is never loaded; save it as safetensors",
        )


def _guard(action, problem: str, remedy: str):
    """Run a reader of files from outside; whatever it raises becomes one line for the user."""
    try:
        return action()
    except Exception as error:
        raise InputError(f"{problem} ({first_line(error)}); {remedy}") from error


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def _dtype_argument(dtype) -> dict:
    import transformers

    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}


@contextlib.contextmanager
def quiet():
    """Within this block only errors are heard; the caller's verbosity comes back afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
