"""The hub, for real: commands against a server on this machine that speaks its protocol.

Each command ends in the right result, or in one clear line and exit code 2.
"""

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import save_tiny_model
from hub_server import serve
from safetensors.torch import load_file

import mlmjoint
from mlmjoint.text import corpus
from mlmjoint.text.hub import DATASETS

ROOT = Path(__file__).resolve().parents[2]
MASKED = "a man is [MASK] [MASK] the street ."
# One process runs many commands: it has read HF_ENDPOINT and HF_HOME at its start, as each would.
SHELL = """\
import contextlib, io, json, sys
from mlmjoint.cli.main import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def hub():
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def run(hub, tmp_path_factory):
    """run(*arguments) -> (exit code, stdout, stderr)."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    home = str(tmp_path_factory.mktemp("home"))
    place = {"HF_ENDPOINT": hub.url, "HF_HOME": home, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SHELL],
        env={**outside, **place},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(*arguments):
        process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield run
    process.communicate()


@pytest.fixture
def files(tiny_model):
    """The files of the tiny model, to be served with changes."""
    return {file.name: file.read_bytes() for file in tiny_model.iterdir()}


@pytest.fixture(scope="module")
def second_model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "second", seed=1)


def ask(run, model):
    """The answer of `mlmjoint pair` as data; nothing else may be printed."""
    code, out, err = run("pair", MASKED, "--model", model, "--methods", "mlm", "--json")
    assert (code, err) == (0, ""), err
    return json.loads(out)


def assert_from(answer, folder):
    """The answer is that of the model in a folder."""
    mlm = mlmjoint.load(folder, device="cpu")
    top = mlmjoint.joint(mlmjoint.conditionals(mlm, mlm.pair(MASKED)), "mlm").top(10)
    rows = answer["methods"]["mlm"]["top"]
    assert [(row["a"], row["b"]) for row in rows] == [(a, b) for a, b, _ in top]
    assert [row["probability"] for row in rows] == pytest.approx([p for *_, p in top], rel=1e-4)


def refused(answer, *parts):
    code, out, err = answer
    assert (code, out) == (2, "") and len(err.splitlines()) == 1, err
    assert err.startswith("mlmjoint: ")
    for part in parts:
        assert part in err


def test_a_model_and_its_revisions(hub, run, tiny_model, second_model):
    old, new = hub.add("models", "org/tiny", tiny_model, second_model)
    hub.repositories["models", "org/tiny"].refs["v1"] = old
    for name, commit, folder in (
        ("org/tiny", new, second_model),
        (f"org/tiny@{old}", old, tiny_model),
        ("org/tiny@v1", old, tiny_model),
    ):
        answer = ask(run, name)
        assert answer["revision"] == commit
        assert_from(answer, folder)
    refused(run("pair", MASKED, "--model", "org/tiny@v9"), "org/tiny has no revision 'v9'")


def test_only_what_is_read_is_downloaded(hub, run, files, tiny_model):
    others = {"README.md": b"# A model", "onnx/model.onnx": b"0" * 9000, "flax_model.msgpack": b"0"}
    hub.add("models", "org/much", files | others | {"pytorch_model.bin": b"not read"})
    assert_from(ask(run, "org/much"), tiny_model)
    asked = {line.rpartition("/")[2] for line in hub.requests if "/org/much/resolve/" in line}
    assert asked == files.keys()


def test_what_was_downloaded_loads_without_the_hub(hub, run, tiny_model):
    (commit,) = hub.add("models", "org/kept", tiny_model, busy=False)
    online = ask(run, "org/kept")
    hub.away = True
    try:
        assert ask(run, "org/kept") == online
        assert ask(run, f"org/kept@{commit}")["revision"] == commit
        refused(
            run("pair", MASKED, "--model", "org/elsewhere"),
            "cannot get 'org/elsewhere' from the hub, and it is not in the cache",
        )
    finally:
        hub.away = False
    hub.repositories["models", "org/kept"].busy = True
    assert ask(run, "org/kept") == online


def test_a_broken_connection_is_resumed(hub, run, files, tiny_model):
    files["notes.txt"] = b"0" * 12_000_000  # the client keeps what it has in blocks of 10 MiB
    cuts = {"notes.txt": [11_000_000], "model.safetensors": [3000]}
    hub.add("models", "org/cut", files, cuts=cuts)
    assert_from(ask(run, "org/cut"), tiny_model)
    assert any(line.endswith(f"notes.txt bytes={10 * 2**20}-") for line in hub.requests)


def test_a_download_that_failed_goes_on_at_the_next_command(hub, run, tiny_model):
    hub.add("models", "org/broken", tiny_model, cuts={"model.safetensors": [3000] + [0] * 9})
    refused(run("pair", MASKED, "--model", "org/broken"), "org/broken")
    hub.repositories["models", "org/broken"].cuts.clear()
    hub.requests.clear()
    assert_from(ask(run, "org/broken"), tiny_model)
    loaded = [line for line in hub.requests if line.startswith("GET /org/broken/resolve")]
    assert len(loaded) == 1 and loaded[0].endswith("model.safetensors")


def test_too_many_requests(hub, run, tiny_model):
    hub.add("models", "org/patience", tiny_model, refusals=2)
    assert_from(ask(run, "org/patience"), tiny_model)
    hub.add("models", "org/busy", tiny_model, busy=True)
    refused(run("pair", MASKED, "--model", "org/busy"), "429", "try later")


def test_a_repository_that_is_not_there_or_not_open(hub, run, tiny_model):
    refused(run("pair", MASKED, "--model", "org/none"), "the hub has no public 'org/none'")
    hub.add("models", "org/gated", tiny_model, gated=True)
    refused(run("pair", MASKED, "--model", "org/gated"), "gated", "accept its terms", "log in")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_with_the_wrong_hash(hub, run, tiny_model, file):
    name = f"org/damaged-{file[0]}"
    hub.add("models", name, tiny_model, damaged=file)
    refused(run("pair", MASKED, "--model", name), f"{file} of {name} has hash", "try again")
    hub.repositories["models", name].damaged = ""
    assert_from(ask(run, name), tiny_model)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_only_a_pickle(hub, run, files, tiny_model):
    safe = load_file(tiny_model / "model.safetensors")
    del files["model.safetensors"]
    weights = io.BytesIO()
    torch.save(safe, weights)
    hub.add("models", "org/pickle", files | {"pytorch_model.bin": weights.getvalue()})
    assert_from(ask(run, "org/pickle"), tiny_model)
    hub.add("models", "org/bomb", files | {"pytorch_model.bin": pickle.dumps(Bomb())})
    refused(run("pair", MASKED, "--model", "org/bomb"), "a pickle that could run code")
    assert not Path("exploded").exists()


def test_remote_code_is_never_run(hub, run, files):
    auto = {"AutoConfig": "mine.MyConfig", "AutoModelForMaskedLM": "mine.MyModel"}
    config = json.loads(files["config.json"]) | {"model_type": "mine", "auto_map": auto}
    files |= {"config.json": json.dumps(config).encode(), "mine.py": b"raise SystemExit(7)"}
    hub.add("models", "org/code", files)
    refused(run("pair", MASKED, "--model", "org/code"), "its own code, which is never run")
    assert not any(line.endswith("mine.py") for line in hub.requests)


# Datasets


def serve_dataset(hub, name, rows):
    """A split of a published corpus, at the commit that the package pins, as one parquet file."""
    import pyarrow
    import pyarrow.parquet

    known = DATASETS[name]
    columns = {c: [f"the {c} was {k} ." for k in range(rows)] for c in known["columns"]}
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns | {"id": [*range(rows)]}), file)
    split = "train" if name == "snli" else "validation"
    path = known["file"].format(split=split)
    hub.add("datasets", known["id"], {path: file.getvalue()})
    repository = hub.repositories["datasets", known["id"]]
    repository.commits = {known["revision"]: repository.commits.popitem()[1]}
    return repository, path, columns


@pytest.mark.parametrize("name", ["snli", "xsum"])
def test_a_study_of_a_published_corpus(hub, run, tiny_model, tmp_path, name):
    def study(out):
        settings = ("--model", tiny_model, "--n", 3, "--methods", "mlm", "--out", tmp_path / out)
        return run("study", "--data", name, *settings)

    repository, path, columns = serve_dataset(hub, name, rows=800)
    faults = {"gated": ("gated", True), "busy": ("429", True), "damaged": ("has hash", path)}
    for fault in faults if name == "snli" else ["gated"]:
        part, value = faults[fault]
        setattr(repository, fault, value)
        refused(study("refused"), part)
        setattr(repository, fault, False)
    repository.cuts = {path: [1000]}
    code, _, err = study("whole")
    assert (code, err) == (0, "")
    assert repository.cuts == {path: []}

    # The protocol again, from its description: the first rows of a shuffle with seed 0.
    order = np.random.default_rng(0).permutation(800)
    chosen = order[-8:-4] if name == "snli" else order
    expected = tmp_path / "expected.txt"
    expected.write_text("\n".join(columns[DATASETS[name]["columns"][0]][k] for k in chosen[:3]))
    lines = (tmp_path / "whole" / "records.jsonl").read_text().splitlines()
    ids = [sentence.id for sentence in corpus(f"text:{expected}")]
    assert [json.loads(line)["sentence"] for line in lines] == ids
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert DATASETS[name]["revision"] in manifest["data"]["source"]
    # In the cache, it needs no hub.
    repository.busy = True
    assert study("again")[0] == 0
