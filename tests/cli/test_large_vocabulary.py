"""A vocabulary of 250,002 tokens, as XLM-R's, goes through `mlmjoint pair --top-k`."""

import pytest

from book.runs import large_vocabulary


@pytest.mark.slow
def test_a_pair_of_xlm_r_s_vocabulary_fits_into_3_gb(tmp_path):
    folder = large_vocabulary.save_model(tmp_path / "xlm")
    assert (folder / "model.safetensors").stat().st_size > 4 * 250_002 * 768  # a real one
    answer = large_vocabulary.ask(folder, 50)
    assert answer["shape"] == [50, 50]
    assert answer["peak_bytes"] < 3e9


def test_the_same_with_a_small_vocabulary(tmp_path):
    folder = large_vocabulary.save_model(tmp_path / "xlm", vocabulary=400, width=24)
    answer = large_vocabulary.ask(folder, 20)
    assert answer["shape"] == [20, 20] and 1e8 < answer["peak_bytes"] < 1e9
