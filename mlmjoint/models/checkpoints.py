"""Model folders: read one, rejecting what is damaged or of another kind; write one."""

import contextlib
import json
import logging
import re
import warnings
from pathlib import Path

from .. import checks
from ..errors import InputError

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*bpe.codes")
# Weights that a sound checkpoint may lack: no logit depends on them.
HARMLESS = re.compile(r"contact_head\.|pooler\.|position_ids$|inv_freq$")
LOCAL = {"trust_remote_code": False, "local_files_only": True}


def read_folder(folder: Path, name: str, dtype):
    """The model, the tokenizer and the weight files of a folder written by ``save_pretrained``."""
    from transformers import AutoModelForMaskedLM

    config = _read_config(folder, name)
    weights = weight_files(folder, name)
    with quiet():
        for file in weights:
            _check_weights(file)
        tokenizer = _read_tokenizer(folder, name)
        options = {"config": config, "weights_only": True, "output_loading_info": True, **LOCAL}
        options["use_safetensors"] = weights[0].suffix == ".safetensors"
        options["torch_dtype"] = dtype  # "dtype" since transformers 4.56, which knows both
        why = "the checkpoint is damaged, or belongs to another architecture than its config.json"
        with checks.one_line(f"the weights of {name} do not load", why):
            model, report = AutoModelForMaskedLM.from_pretrained(folder, **options)
    missing = sorted(key for key in report["missing_keys"] if not HARMLESS.search(key))
    if missing:
        raise InputError(
            f"{name} lacks {len(missing)} weights of {type(model).__name__} ({missing[0]}, ...), "
            "which would be random; choose a checkpoint that was saved with its MLM head"
        )
    return model.eval(), tokenizer, weights


def save_folder(model, tokenizer, folder: Path) -> None:
    """A model and its tokenizer as a folder that every version of transformers reads."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    # The name by which all of them know the class.
    path = Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that contain the weights, safetensors before .bin, shards in order."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).is_file():
            return [folder / single]
        index = folder / f"{single}.index.json"
        if index.is_file():
            with checks.one_line(f"cannot read {index}", "download the folder again"):
                named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            shards = [folder / shard for shard in sorted(set(named))]
            for lost in (shard.name for shard in shards if not shard.is_file()):
                raise InputError(f"{name} lacks the shard {lost}; download the folder again")
            return shards
    raise InputError(f"{folder} has neither model.safetensors nor pytorch_model.bin; save it again")


@contextlib.contextmanager
def quiet(bars: bool = False):
    """Silence transformers and huggingface_hub except for errors, then restore what was shown.

    ``bars`` leaves their progress bars as they are.
    """
    from transformers.utils import logging as library

    level, hide_bars = logging.root.manager.disable, not bars and library.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        if hide_bars:
            library.disable_progress_bar()  # huggingface_hub's too
        try:
            yield
        finally:
            logging.disable(level)
            if hide_bars:
                library.enable_progress_bar()


def _read_config(folder: Path, name: str):
    """The configuration of a masked language model: of transformers, or an ExLM."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoConfig

    from . import exlm  # noqa: F401 (it makes itself known to transformers)

    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} has no config.json; give a folder written by save_pretrained")
    remedy = "choose an architecture that is part of transformers"
    with checks.one_line(f"the config.json of {name} cannot be used", remedy):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if "auto_map" in stored and stored.get("model_type") not in CONFIG_MAPPING:
            raise InputError(f"{name} comes with its own code, which is never run; {remedy}")
        config = AutoConfig.from_pretrained(folder, **LOCAL)
    is_decoder = getattr(config, "is_decoder", False)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING or is_decoder:
        raise InputError(
            f"{name} is a {config.model_type} {'causal ' * is_decoder}model, not a masked language "
            "model; choose one that AutoModelForMaskedLM knows, such as bert or roberta"
        )
    return config


def _read_tokenizer(folder: Path, name: str):
    from transformers import AutoTokenizer

    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise InputError(f"{folder} has no tokenizer; save it there with tokenizer.save_pretrained")
    remedy = "save it again with tokenizer.save_pretrained"
    with checks.one_line(f"the tokenizer of {name} does not load", remedy):
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    if tokenizer.mask_token_id is None:
        raise InputError(
            f"the tokenizer of {name} has no mask token; choose a masked language model"
        )
    return tokenizer


def _check_weights(file: Path) -> None:
    """Open a file the safe way first, so that a truncated or malicious one is named as such."""
    import torch
    from safetensors import safe_open

    if file.suffix == ".safetensors":
        with checks.one_line(
            f"{file} is damaged or not a safetensors file", "download or save it again"
        ):
            safe_open(file, framework="pt").__enter__()
        return
    remedy = "a pickle that could run code is never loaded; save it as safetensors"
    with checks.one_line(f"{file} is damaged or contains more than weights", remedy):
        torch.load(file, map_location="meta", weights_only=True)
