"""`mlmjoint train --architecture exlm`: its batches, its card, and the model it leaves."""

import argparse

import pytest
import torch
from training_text import SENTENCES

from mlmjoint import InputError, exlm_joint, load
from mlmjoint.cli import train as command
from mlmjoint.train import cards
from mlmjoint.train.masking import AllMaskedBatches, unary_perplexity
from mlmjoint.train.recipes import RECIPES, initialise
from mlmjoint.train.settings import Settings
from mlmjoint.train.train import train

QUICK = {"steps": 4, "batch_size": 8, "device": "cpu", "valid_fraction": 0.1}


def test_every_chosen_token_is_masked(tokenizer):
    batches = AllMaskedBatches(tokenizer, SENTENCES, Settings(mask_rate=0.5), 0, 32)
    for number in range(3):
        batch = batches[number]
        assert torch.equal(batch["labels"] != -100, batch["input_ids"] == tokenizer.mask_token_id)


@pytest.mark.parametrize("links", ["dense", "sparse", "chain"])
def test_the_command_trains_a_model_that_loads_and_gives_a_joint(
    links, text_file, tmp_path, capsys
):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = (
        f"--data {text_file} --out {tmp_path}/out --architecture exlm --states 3 --links {links}"
    )
    words += " --state-embedding 0.5 --steps 3 --batch-size 8 --device cpu --name three"
    assert command.run(parser.parse_args(words.split())) == 0
    assert "three written to" in capsys.readouterr().out
    card = cards.read_card(tmp_path / "out")
    assert card["model"]["class"] == "ExLM"
    assert (card["model"]["states"], card["model"]["links"]) == (3, links)
    assert "--architecture exlm --states 3" in card["command"]
    text = (tmp_path / "out" / "README.md").read_text()
    assert "3 states for each mask" in text and "all masked" in text and "replaced" not in text
    mlm = load(tmp_path / "out", device="cpu")
    joint = exlm_joint(mlm, mlm.pair("A [MASK] [MASK] in the park."))
    assert joint.log_w.shape == (3, 3)
    again, _ = unary_perplexity(mlm.model, mlm.tokenizer, SENTENCES[::5])
    assert 1 < again < len(mlm.tokenizer)


def test_training_goes_on_with_the_same_states_alone(text_file, tmp_path):
    options = {"architecture": "exlm", "states": 2, "save_every": 2, **QUICK}
    train([str(text_file)], tmp_path / "out", **options)
    longer = train([str(text_file)], tmp_path / "out", **{**options, "steps": 6})
    assert [s["from_step"] for s in longer["training"]["schedules"]] == [0, 4]
    with pytest.raises(InputError, match="another states"):
        train([str(text_file)], tmp_path / "out", **{**options, "states": 3})
    train([str(text_file)], tmp_path / "plain", **QUICK)
    with pytest.raises(InputError, match="another architecture"):
        train([str(text_file)], tmp_path / "plain", **options)


def test_a_molecule_is_read_atom_by_atom():
    recipe = RECIPES["smiles"]
    model, tokenizer = initialise(recipe, ["CC(=O)Oc1ccccc1", "C[NH3+].[Cl-]>>BrCCl"], exlm={})
    tokens = tokenizer.tokenize("Cc1C[NH3+].[Cl-]>>BrCCl")
    assert tokens == ["C", "c", "1", "C", "[NH3+]", ".", "[Cl-]", ">>", "Br", "C", "Cl"]
    assert model.config.states == 4 and model.config.vocab_size == len(tokenizer)
