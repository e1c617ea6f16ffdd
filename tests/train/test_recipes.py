"""What a model begins with: its vocabulary and its weights."""

import torch
from transformers import BertConfig, BertModel

from mlmjoint.train import recipes
from mlmjoint.train.recipes import SPECIALS, keep_tokens, wordpiece


def test_a_pruned_vocabulary_breaks_rare_words_up():
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*letters, ".", *(f"##{c}" for c in letters)]
    words = ["dog", "zebra", "##ing", "run", "aardvark"]
    full = wordpiece([*SPECIALS, *pieces, *words], 64).backend_tokenizer
    room = 5 + len(pieces) + 1 + 2  # specials, characters, one ending and two words
    kept = keep_tokens(full, ["A dog runs.", "A dog.", "run run", "zebra"], room)
    assert len(kept) == room
    assert kept[:5] == list(SPECIALS)
    assert {"dog", "run", "##ing", "##s"} <= set(kept)
    assert "zebra" not in kept
    small = wordpiece(kept, 64).backend_tokenizer
    tokens = small.encode("zebra", add_special_tokens=False).tokens
    assert tokens == ["z", "##e", "##b", "##r", "##a"]
    assert small.encode("running").tokens[0] == "[CLS]"
    assert keep_tokens(full, [], None) == [*SPECIALS, *pieces, *words]


def test_an_encoder_gives_its_layers_and_rows(tmp_path):
    words = [*SPECIALS, *"abcdefghij.", "dog", "cat", "runs"]
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words), num_hidden_layers=3, **sizes)
    encoder = BertModel(config, add_pooling_layer=False)
    encoder.save_pretrained(tmp_path)
    wordpiece(words, 64).backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    recipe = recipes.Recipe("r", initialiser="minilm", layers=(0, 2), vocab_size=18, max_length=64)
    model, tokenizer = recipes.initialise(recipe, ["dog runs.", "dog"], source=tmp_path)
    assert model.config.vocab_size == len(tokenizer) == 18
    row = tokenizer.convert_tokens_to_ids("dog")
    embeddings = encoder.embeddings.word_embeddings.weight[words.index("dog")]
    assert torch.equal(model.bert.embeddings.word_embeddings.weight[row], embeddings)
    second = encoder.encoder.layer[2].output.dense.weight
    assert torch.equal(model.bert.encoder.layer[1].output.dense.weight, second)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    # The bias orders tokens by how common they are.
    bias = model.cls.predictions.bias
    assert bias[row] > bias[tokenizer.convert_tokens_to_ids("runs")] > bias[tokenizer.unk_token_id]


def test_a_recipe_with_an_initialiser_has_its_width():
    for recipe in recipes.RECIPES.values():
        fresh = recipe.initialiser is None
        assert (recipe.hidden_size is not None) == (recipe.heads is not None) == fresh
