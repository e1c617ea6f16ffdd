"""The models of the live pages: a graph for onnxruntime whose weights are the package's own files.

    python -m book.make.live --out FOLDER

For each model FOLDER/NAME receives `graph.onnx` (20 kB), and copies of `model.safetensors` and
`tokenizer.json`; where the package has a pair head for the model, also `head.onnx` and a copy of
`head.safetensors`. ONNX lets a weight be a stretch of bytes in another file, so a graph points into
the safetensors as they are: float16 there, cast to float32 when the browser loads them. No weight
is stored twice, and nothing is converted. `models.json` says what a page must know beforehand.

The graph reads ids (n, T) and one position per row (n,), and gives logits (n, V) and the last
hidden state (n, H) at that position: in the last layer, queries and feed-forward run at that
position alone. The head's graph reads the hidden states of both gaps (2, H), and gives log w (R,)
and the components' logits (2R, V), first those at A.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlmjoint import files
from mlmjoint.errors import InputError
from mlmjoint.models import pair_head

MODELS = ("en-small", "toy")
OPSET = 20  # the first with Gelu
WEIGHTS = "model.safetensors"
INTEGER = dict.fromkeys(("ids", "positions", "tokens", "distance"), TensorProto.INT64)  # of inputs


class Graph:
    """ONNX nodes, added one by one; every method returns the name of its result."""

    def __init__(self, *weights: Path):
        self.nodes, self.tensors, self.cast = [], [], {}
        self.stored = {}  # name: file, first byte, number of bytes, dtype, shape
        for path in weights:
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for name, about in header.items():
                begin, end = about["data_offsets"]
                place = (path.name, 8 + size + begin, end - begin)
                self.stored[name] = (*place, about["dtype"], about["shape"])

    def node(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, *values: int) -> str:
        name = f"constant_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def weight(self, name: str) -> str:
        """A weight of a safetensors file, cast to float32."""
        *place, dtype, shape = self.stored[name]
        if dtype != "F16":
            raise InputError(f"{name} is stored as {dtype}; store the model in float16")
        if name not in self.cast:
            tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT16)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in zip(("location", "offset", "length"), place, strict=True):
                tensor.external_data.add(key=key, value=str(value))
            self.tensors.append(tensor)
            self.cast[name] = self.node("Cast", name, to=TensorProto.FLOAT)
        return self.cast[name]

    def linear(self, x: str, name: str) -> str:
        """(m, K) -> (m, N)."""
        names = (f"{name}.{part}" for part in ("weight", "bias"))
        parts = [self.weight(name) for name in names if name in self.stored]
        return self.node("Gemm", x, *parts, transB=1)

    def norm(self, x: str, name: str, eps: float) -> str:
        parts = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", x, *parts, epsilon=eps)

    def heads(self, x: str, shape: str) -> str:
        """(n·T, H) -> (n, heads, T, d), or (n, H) -> (n, heads, 1, d)."""
        return self.node("Transpose", self.node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def decode(self, x: str, eps: float) -> None:
        """The model's prediction head: (n, H) -> the output logits (n, V)."""
        x = self.node("Gelu", self.linear(x, "cls.predictions.transform.dense"))
        x = self.norm(x, "cls.predictions.transform.LayerNorm", eps)
        tied = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
        self.output("Gemm", "logits", x, *map(self.weight, tied), transB=1)

    def output(self, kind: str, name: str, *inputs: str, **attributes) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))

    def model(self, name: str, inputs: dict, outputs: dict) -> onnx.ModelProto:
        """The finished graph; its inputs and outputs as {name: shape}."""
        values = [
            [
                helper.make_tensor_value_info(key, INTEGER.get(key, TensorProto.FLOAT), shape)
                for key, shape in some.items()
            ]
            for some in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, name, *values, self.tensors)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def read_config(folder: Path) -> dict:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if (config["model_type"], config["hidden_act"]) != ("bert", "gelu"):
        raise InputError(f"{folder.name} is not a BERT with gelu; the live pages run no other")
    return config


def build(folder: Path) -> onnx.ModelProto:
    """The graph of a BertForMaskedLM saved in a folder."""
    config = read_config(folder)
    g = Graph(folder / WEIGHTS)
    width, heads, eps = (
        config[key] for key in ("hidden_size", "num_attention_heads", "layer_norm_eps")
    )
    part = width // heads
    count, length = (
        g.node("Gather", g.node("Shape", "ids"), g.constant(k), axis=0) for k in (0, 1)
    )  # (1,) each
    scalar = g.node("Squeeze", length)
    zero, one = (g.node("Squeeze", g.constant(k)) for k in (0, 1))
    # Embeddings, flat: (n·T, H)
    base = "bert.embeddings"
    words = g.node("Gather", g.weight(f"{base}.word_embeddings.weight"), "ids")  # (n, T, H)
    places = g.node("Range", zero, scalar, one)
    places = g.node("Gather", g.weight(f"{base}.position_embeddings.weight"), places)  # (T, H)
    kind = g.node("Gather", g.weight(f"{base}.token_type_embeddings.weight"), zero)  # (H,)
    x = g.node("Add", g.node("Add", words, places), kind)
    x = g.norm(g.node("Reshape", x, g.constant(-1, width)), f"{base}.LayerNorm", eps)
    # Which rows of the flat x are wanted: n·T + position
    number = g.node("Range", zero, g.node("Squeeze", count), one)
    wanted = g.node("Add", g.node("Mul", number, scalar), "positions")  # (n,)
    split = g.node("Concat", count, length, g.constant(heads, part), axis=0)
    alone = g.node("Concat", count, g.constant(1, heads, part), axis=0)
    scale = g.node("Cast", g.node("Squeeze", g.constant(part)), to=TensorProto.FLOAT)
    scale = g.node("Sqrt", scale)
    last = config["num_hidden_layers"] - 1
    for k in range(last + 1):
        layer = f"bert.encoder.layer.{k}"
        own = g.node("Gather", x, wanted, axis=0) if k == last else x  # (n, H) or (n·T, H)
        own_shape = alone if k == last else split
        q, key, value = (
            g.heads(g.linear(source, f"{layer}.attention.self.{name}"), shape)
            for name, source, shape in (
                ("query", own, own_shape),
                ("key", x, split),
                ("value", x, split),
            )
        )
        scores = g.node("MatMul", q, g.node("Transpose", key, perm=[0, 1, 3, 2]))
        weights = g.node("Softmax", g.node("Div", scores, scale), axis=-1)
        context = g.node("Transpose", g.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        context = g.node("Reshape", context, g.constant(-1, width))
        out = g.linear(context, f"{layer}.attention.output.dense")
        x = g.norm(g.node("Add", out, own), f"{layer}.attention.output.LayerNorm", eps)
        inner = g.node("Gelu", g.linear(x, f"{layer}.intermediate.dense"))
        out = g.linear(inner, f"{layer}.output.dense")
        x = g.norm(g.node("Add", out, x), f"{layer}.output.LayerNorm", eps)
    g.output("Identity", "hidden", x)
    g.decode(x, eps)
    outputs = {"logits": ["n", config["vocab_size"]], "hidden": ["n", width]}
    return g.model(folder.name, {"ids": ["n", "T"], "positions": ["n"]}, outputs)


def build_head(folder: Path, head: Path) -> onnx.ModelProto:
    """The graph of a pair head of the model in a folder."""
    g, config = Graph(folder / WEIGHTS, head / pair_head.WEIGHTS), read_config(folder)
    if head_kind(head) == "conditional":
        return build_conditionals(g, config, f"{folder.name}-head")
    return build_mixture(g, config, f"{folder.name}-head")


def head_kind(head: Path) -> str:
    return json.loads((head / pair_head.CONFIG).read_text()).get("kind", "mixture")


def build_conditionals(g: Graph, config: dict, name: str) -> onnx.ModelProto:
    """One gap given words at the other (eq-one-pass-conditionals); its own state comes first."""
    own, other = (g.node("Gather", "hidden", g.constant(k), axis=0) for k in (0, 1))  # (1, H)
    most, least = (g.node("Squeeze", g.constant(k)) for k in (pair_head.FAR, -pair_head.FAR))
    row = g.node("Add", g.node("Clip", "distance", least, most), most)
    place = g.node("Gather", g.weight("distance.weight"), row, axis=0)
    x = g.node("Add", g.linear(g.node("Concat", own, other, axis=1), "both"), place)  # (1, units)
    tied = g.weight("bert.embeddings.word_embeddings.weight")
    words = g.node("Gather", tied, "tokens", axis=0)  # (n, H)
    g.tensors.append(numpy_helper.from_array(np.ones(config["hidden_size"], np.float32), "ones"))
    words = g.node("LayerNormalization", words, "ones", epsilon=1e-5)
    y = g.linear(words, "written")  # (n, units)
    inner = g.node("Gelu", g.node("Add", g.node("Add", x, y), g.node("Mul", x, y)))
    inner = g.node("Add", inner, g.node("Gelu", g.linear(inner, "inner")))
    g.decode(g.node("Add", own, g.linear(inner, "shift")), config["layer_norm_eps"])
    inputs = {"hidden": [2, config["hidden_size"]], "tokens": ["n"], "distance": [1]}
    return g.model(name, inputs, {"logits": ["n", config["vocab_size"]]})


def build_mixture(g: Graph, config: dict, name: str) -> onnx.ModelProto:
    """A mixture of products (eq-one-pass)."""
    width = config["hidden_size"]
    rank = g.stored["weights.bias"][-1][0]
    other = g.node("Gather", "hidden", g.constant(1, 0), axis=0)  # (2, H)
    inner = g.linear(g.node("Concat", "hidden", other, axis=1), "first")  # (2, units)
    inner = g.node("Gelu", inner)
    sums = g.node("ReduceSum", g.linear(inner, "weights"), g.constant(0), keepdims=0)
    g.output("LogSoftmax", "log_w", sums)  # (R,)
    offsets = g.node("Reshape", g.linear(inner, "offsets"), g.constant(2, rank, width))
    own = g.node("Reshape", "hidden", g.constant(2, 1, width))
    states = g.node("Reshape", g.node("Add", own, offsets), g.constant(2 * rank, width))
    g.decode(states, config["layer_norm_eps"])
    outputs = {"log_w": [rank], "logits": [2 * rank, config["vocab_size"]]}
    return g.model(name, {"hidden": [2, width]}, outputs)


def write(out: Path) -> None:
    """Graphs, weights and tokenizer of every live model."""
    about = {}
    for name in MODELS:
        source, head, target = files.MODELS / name, pair_head.HEADS / name, Path(out) / name
        target.mkdir(parents=True, exist_ok=True)
        graphs, copies = {"graph": build(source)}, [source / WEIGHTS, source / "tokenizer.json"]
        kind = name in pair_head.shipped_heads() and head_kind(head)
        if kind:
            graphs["head"] = build_head(source, head)
            copies.append(head / pair_head.WEIGHTS)
        for key, graph in graphs.items():
            (target / f"{key}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
        for path in copies:
            shutil.copyfile(path, target / path.name)
        length = read_config(source)["max_position_embeddings"]
        about[name] = {"length": length, "head": kind}
    (Path(out) / "models.json").write_text(json.dumps(about), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m book.make.live")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models")
    write(parser.parse_args().out)
