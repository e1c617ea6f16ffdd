"""The models of the live pages: a graph for onnxruntime whose weights are the package's own files.

    python -m book.make.live --out FOLDER

For each model FOLDER/NAME receives `graph.onnx` (20 kB), and copies of `model.safetensors` and
`tokenizer.json`. ONNX lets a weight be a stretch of bytes in another file, so the graph points into
the safetensors as it is: float16 there, cast to float32 when the browser loads it. No weight is
stored twice, and nothing is converted.

The graph reads ids (n, T) and one position per row (n,), and gives logits (n, V) at that position:
in the last layer, queries and feed-forward run at that position alone.
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

MODELS = ("en-small", "toy")
OPSET = 20  # the first with Gelu
WEIGHTS = "model.safetensors"


class Graph:
    """ONNX nodes, added one by one; every method returns the name of its result."""

    def __init__(self, folder: Path):
        self.nodes, self.tensors, self.cast = [], [], {}
        with open(folder / WEIGHTS, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.header, self.start = json.loads(file.read(size)), 8 + size

    def node(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, *values: int) -> str:
        name = f"constant_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def weight(self, name: str) -> str:
        """A weight of the safetensors file, cast to float32."""
        about = self.header[name]
        if about["dtype"] != "F16":
            raise InputError(f"{name} is stored as {about['dtype']}; store the model in float16")
        begin, end = about["data_offsets"]
        if name not in self.cast:
            tensor = TensorProto(name=name, dims=about["shape"], data_type=TensorProto.FLOAT16)
            tensor.data_location = TensorProto.EXTERNAL
            where = {"location": WEIGHTS, "offset": self.start + begin, "length": end - begin}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            self.tensors.append(tensor)
            self.cast[name] = self.node("Cast", name, to=TensorProto.FLOAT)
        return self.cast[name]

    def linear(self, x: str, name: str) -> str:
        """(m, K) -> (m, N)."""
        parts = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("Gemm", x, *parts, transB=1)

    def norm(self, x: str, name: str, eps: float) -> str:
        parts = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", x, *parts, epsilon=eps)

    def heads(self, x: str, shape: str) -> str:
        """(n·T, H) -> (n, heads, T, d), or (n, H) -> (n, heads, 1, d)."""
        return self.node("Transpose", self.node("Reshape", x, shape), perm=[0, 2, 1, 3])


def build(folder: Path) -> onnx.ModelProto:
    """The graph of a BertForMaskedLM saved in a folder."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if (config["model_type"], config["hidden_act"]) != ("bert", "gelu"):
        raise InputError(f"{folder.name} is not a BERT with gelu; the live pages run no other")
    g = Graph(folder)
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
    head = "cls.predictions"
    x = g.node("Gelu", g.linear(x, f"{head}.transform.dense"))
    x = g.norm(x, f"{head}.transform.LayerNorm", eps)
    tied = g.weight(f"{base}.word_embeddings.weight"), g.weight(f"{head}.bias")
    g.nodes.append(helper.make_node("Gemm", [x, *tied], ["logits"], transB=1))
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "T"]),
        helper.make_tensor_value_info("positions", TensorProto.INT64, ["n"]),
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", config["vocab_size"]])
    graph = helper.make_graph(g.nodes, folder.name, inputs, [output], g.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return model


def write(out: Path) -> None:
    """Graph, weights and tokenizer of every live model."""
    for name in MODELS:
        source, target = files.MODELS / name, Path(out) / name
        target.mkdir(parents=True, exist_ok=True)
        (target / "graph.onnx").write_bytes(build(source).SerializeToString(deterministic=True))
        for file in (WEIGHTS, "tokenizer.json"):
            shutil.copyfile(source / file, target / file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m book.make.live")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models")
    write(parser.parse_args().out)
