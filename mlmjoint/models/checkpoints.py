"""Read a masked language model from a folder; reject what is damaged or of another kind."""

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
# Weights that a sound checkpoint may lack: no logit depends on them.
HARMLESS = re.compile(r"contact_head\.|pooler\.|position_ids$|inv_freq$")


def read_folder(folder: Path, name: str, dtype):
    """The model, the tokenizer and the weight files of a folder written by ``save_pretrained``."""
    from transformers import AutoModelForMaskedLM

    config = _read_config(folder, name)
    weights = weight_files(folder, name)
    with quiet():
        for file in weights:
            _check_weights(file)
        tokenizer = _read_tokenizer(folder, name)
        model, report = _guard(
            lambda: AutoModelForMaskedLM.from_pretrained(
                folder,
                config=config,
                use_safetensors=weights[0].suffix == ".safetensors",
                weights_only=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **dtype_argument(dtype),
            ),
            f"the weights of {name} do not load",
            "the checkpoint is damaged, or belongs to another architecture than its config.json",
        )
    missing = sorted(key for key in report["missing_keys"] if not HARMLESS.search(key))
    if missing:
        raise InputError(
            f"{name} lacks {len(missing)} weights of {type(model).__name__} ({missing[0]}, ...), "
            "which would be random; choose a checkpoint that was saved with its MLM head"
        )
    return model.eval(), tokenizer, weights


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that contain the weights, safetensors before .bin, shards in order."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).is_file():
            return [folder / single]
        index = folder / f"{single}.index.json"
        if index.is_file():
            shards = _guard(
                lambda path=index: json.loads(path.read_text(encoding="utf-8"))["weight_map"],
                f"cannot read {index}",
                "download the folder again",
            )
            shards = [folder / shard for shard in sorted(set(shards.values()))]
            for shard in shards:
                if not shard.is_file():
                    raise InputError(
                        f"{name} lacks the shard {shard.name}; download the folder again"
                    )
            return shards
    raise InputError(f"{folder} has neither model.safetensors nor pytorch_model.bin; save it again")


def fingerprint(weights: list[Path]) -> str:
    """SHA-256 of the one weight file, or of the digests of all shards in order."""
    digests = [files.sha256(file) for file in weights]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def dtype_argument(dtype) -> dict:
    """The keyword that tells ``from_pretrained`` the precision; transformers 4.56 renamed it."""
    import transformers

    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}


@contextlib.contextmanager
def quiet():
    """Silence transformers except for errors; afterwards restore the caller's verbosity."""
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


def first_line(error: Exception) -> str:
    """The first line of an error's message, at most 160 characters of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def _read_config(folder: Path, name: str):
    """The configuration of a masked language model that is part of transformers."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoConfig

    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} has no config.json; give a folder written by save_pretrained")
    problem = f"the config.json of {name} cannot be used"
    remedy = "choose an architecture that is part of transformers"
    stored = _guard(lambda: json.loads(path.read_text(encoding="utf-8")), problem, remedy)
    if "auto_map" in stored and stored.get("model_type") not in CONFIG_MAPPING:
        raise InputError(f"{name} comes with its own code, which is never run; {remedy}")
    config = _guard(
        lambda: AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True),
        problem,
        remedy,
    )
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING or getattr(config, "is_decoder", False):
        kind = "causal model" if getattr(config, "is_decoder", False) else "model"
        raise InputError(
            f"{name} is a {config.model_type} {kind}, not a masked language model; "
            "choose one that AutoModelForMaskedLM knows, such as bert or roberta"
        )
    return config


def _read_tokenizer(folder: Path, name: str):
    from transformers import AutoTokenizer

    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise InputError(f"{folder} has no tokenizer; save it there with tokenizer.save_pretrained")
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
    """Open a file the safe way first, so that a truncated or malicious one is named as such."""
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        _guard(
            lambda: safe_open(file, framework="pt").__enter__(),
            f"{file} is damaged or not a safetensors file",
            "download or save it again",
        )
    else:
        import torch

        _guard(
            lambda: torch.load(file, map_location="meta", weights_only=True),
            f"{file} is damaged or contains more than weights",
            "a pickle that could run code is never loaded; save it as safetensors",
        )


def _guard(action, problem: str, remedy: str):
    """Read files that are not ours: any exception becomes one line for the user."""
    try:
        return action()
    except Exception as error:
        raise InputError(f"{problem} ({first_line(error)}); {remedy}") from error
