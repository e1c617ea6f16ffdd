"""Shared by all tests: one thread for each process, no model hub, a tiny model, one browser."""

import os

import pytest
from browsing import address, browser, built  # noqa: F401
from small_study import mlm, text, whole  # noqa: F401
from training_text import text_file, tiny, tokenizer  # noqa: F401

from mlmjoint.errors import InputError

# Before torch is imported, the same shell for all: one thread, because pytest-xdist runs a process
# for each core already, no hub, no GPU (numbers are compared with the CPU's), a plain terminal.
SHELL = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
SHELL |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
SHELL |= {"COLUMNS": "80", "TERM": "xterm"}
REFERENCE = os.environ.get("MLMJOINT_ENGINE") == "reference"  # make test ENGINE=reference
for name in {*os.environ} - {"MLMJOINT_CACHE"}:
    if name.startswith(("MLMJOINT_", "GIT_")) or name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR"):
        del os.environ[name]
os.environ.update(SHELL)


def pytest_collection_modifyitems(items):
    """With the dense reference in place of the engine, tests of the engine itself are left out."""
    if REFERENCE:
        import reference_engine

        reference_engine.install()
        for item in items:
            if "engine" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="tests the engine itself"))


SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "the", "man", "woman", "dog", "is", "was", "walking", "running", "down", "across"]
WORDS += ["street", "road", ".", "[b]"]


def save_tiny_model(folder, vocabulary=None, mask_token="[MASK]", seed=0, vocab_size=None):
    """A BERT with random weights, 2 layers of 16, over a handful of words; takes 16 tokens."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM

    from mlmjoint.models.tokenizer import BERT_SPECIALS, build_tokenizer

    words = [*SPECIALS, *WORDS] if vocabulary is None else vocabulary
    specials = {k: v for k, v in {**BERT_SPECIALS, "mask_token": mask_token}.items() if v}
    splitter = pre_tokenizers.WhitespaceSplit()
    build_tokenizer(words, splitter, 10**30, specials).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 16, "initializer_range": 0.6}
    config = BertConfig(vocab_size=vocab_size or len(SPECIALS) + len(WORDS), **sizes)
    torch.manual_seed(seed)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def random_head(width, rank, units, seed, scale):
    """Large random weights: nothing that holds of it was learnt."""
    import torch

    from mlmjoint.models.pair_head import PairHead

    torch.manual_seed(seed)
    head = PairHead(width, rank=rank, units=units)
    with torch.no_grad():
        for weight in head.parameters():
            weight.mul_(scale)
    return head


@pytest.fixture(scope="session")
def toy():
    """The model of the toy world; its parameters and its mode stay as they are."""
    import mlmjoint

    return mlmjoint.load("toy", device="cpu")


@pytest.fixture(autouse=True)
def every_error_is_one_line(monkeypatch):
    """Whatever InputError a test meets, its message has no second line."""
    messages = []

    def note(self, message):
        messages.append(message)

    monkeypatch.setattr(InputError, "__init__", note)
    yield
    assert not [message for message in messages if "\n" in message]


@pytest.fixture
def refused(capsys):
    """``refused(words, *parts)``: a command ends with code 2 and one line that has the parts."""
    from mlmjoint.cli.main import main

    def check(words, *parts):
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        shown = capsys.readouterr()
        (line,) = shown.err.splitlines()
        assert shown.out == "" and line.startswith("mlmjoint: ")
        assert all(part.lower() in line.lower() for part in parts), line

    return check


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a tiny random model; every word of WORDS is one token."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
