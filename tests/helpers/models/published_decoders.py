"""Decoders as they are published: onnxruntime's own operators around weights of four bits, old keys and values as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, OWN, SIZE, WORDS, BLOCK = 2, 4, 2, 16, 56, 16
WIDTH, INNER = HEADS * SIZE, 96


class Decoder:
    """Builds one: like LLaMA (Gemma's and GPT-OSS's attention by `options`), packed queries, keys and values or not, of any precision."""

    own = OWN

    def __init__(self, *, packed: bool = False, seed: int = 5, dtype: Any = np.float32, **options: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.packed, self.dtype, self.options = packed, np.dtype(dtype), options
        self.stored: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def store(self, name: str, value: Any) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: str, *outputs: str, own: bool = True, **attrs: Any) -> str:
        names = inputs.split(" ")
        domain = "com.microsoft" if own else ""
        self.nodes.append(helper.make_node(op, names, outputs, name=f"/{outputs[0]}/{op}", domain=domain, **attrs))
        return outputs[0]

    def product(self, x: str, name: str, depth: int, width: int) -> str:
        blocks = -(-depth // BLOCK)
        w = self.store(f"{name}.w", self.rng.integers(0, 256, (width, blocks, BLOCK // 2)).astype(np.uint8))
        s = self.store(f"{name}.s", (0.3 * np.abs(self.rng.standard_normal((width, blocks))) / depth**0.5).astype(self.dtype))
        z = self.store(f"{name}.z", self.rng.integers(0, 256, (width, -(-blocks // 2))).astype(np.uint8))
        return self.node("MatMulNBits", f"{x} {w} {s} {z}", name, bits=4, block_size=BLOCK, K=depth, N=width)

    def gain(self, name: str) -> str:
        return self.store(name, (1 + 0.1 * self.rng.standard_normal(WIDTH)).astype(self.dtype))

    def attention(self, x: str, n: int) -> str:
        if self.packed:
            parts = f"{self.product(x, f'qkv{n}', WIDTH, WIDTH + 2 * OWN * SIZE)}  "
        else:
            sizes = {"q": WIDTH, "k": OWN * SIZE, "v": OWN * SIZE}
            parts = " ".join(self.product(x, f"{letter}{n}", WIDTH, size) for letter, size in sizes.items())
        inputs = f"{parts} past.{n}.key past.{n}.value seqlens_k total cos sin"
        attrs = {"num_heads": HEADS, "kv_num_heads": OWN, "do_rotary": 1, "scale": SIZE**-0.5, **self.options}
        seen = self.node("GroupQueryAttention", inputs, f"seen{n}", f"present.{n}.key", f"present.{n}.value", **attrs)
        return self.product(seen, f"o{n}", WIDTH, WIDTH)

    def gated(self, x: str, n: int) -> str:
        gate, up = (self.product(x, f"{name}{n}", WIDTH, INNER) for name in ("gate", "up"))
        self.node("Sigmoid", gate, f"sigmoid{n}", own=False)
        self.node("Mul", f"{gate} sigmoid{n}", f"silu{n}", own=False)
        self.node("Mul", f"silu{n} {up}", f"inner{n}", own=False)
        return self.product(f"inner{n}", f"down{n}", INNER, WIDTH)

    def lengths(self) -> None:
        """As onnxruntime-genai's builder writes them."""
        one, axis = self.store("one", np.array([1], np.int64)), self.store("axis", np.array(1, np.int64))
        self.node("ReduceSum", f"attention_mask {one}", "counts", own=False)
        self.node("Sub", f"counts {one}", "less", own=False)
        self.node("Cast", "less", "seqlens_k", own=False, to=TensorProto.INT32)
        self.node("Shape", "attention_mask", "sizes", own=False)
        self.node("Gather", f"sizes {axis}", "whole", own=False)
        self.node("Cast", "whole", "total", own=False, to=TensorProto.INT32)

    def build(self) -> onnx.ModelProto:
        self.lengths()
        places = np.arange(1024)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
        self.store("cos", np.cos(places).astype(self.dtype))
        self.store("sin", np.sin(places).astype(self.dtype))
        table = self.store("table", self.rng.integers(0, 256, (WORDS, WIDTH // 2)).astype(np.uint8))
        scale = self.store("table.s", (0.1 + np.abs(self.rng.standard_normal((WORDS, WIDTH // BLOCK)))).astype(self.dtype))
        whole = self.node("GatherBlockQuantized", f"{table} input_ids {scale}", "embedded", bits=4, block_size=BLOCK)
        x = self.node("SimplifiedLayerNormalization", f"{whole} {self.gain('g0')}", "normed0", own=False, epsilon=1e-5, axis=-1)
        for n in range(LAYERS):
            for k, part in enumerate((self.attention, self.gated)):
                more, name = part(x, n), f"{n}.{k}"
                inputs = f"{whole} {more} {self.gain(f'g{name}')}"
                last = (n, k) == (LAYERS - 1, 1)
                whole = f"whole{name}"
                outputs = [f"normed{name}"] if last else [f"normed{name}", "", "", whole]
                x = self.node("SkipSimplifiedLayerNormalization", inputs, *outputs, epsilon=1e-5)
        self.product(x, "logits", WIDTH, WORDS)
        return self.model()

    def model(self) -> onnx.ModelProto:
        ints, floats = TensorProto.INT64, helper.np_dtype_to_tensor_dtype(self.dtype)
        inputs = [helper.make_tensor_value_info("input_ids", ints, ["batch", "new"])]
        inputs += [helper.make_tensor_value_info("attention_mask", ints, ["batch", "total"])]
        outputs = [helper.make_tensor_value_info("logits", floats, ["batch", "new", WORDS])]
        for n in range(LAYERS):
            for what in ("key", "value"):
                inputs.append(helper.make_tensor_value_info(f"past.{n}.{what}", floats, ["batch", self.own, "past", SIZE]))
                outputs.append(helper.make_tensor_value_info(f"present.{n}.{what}", floats, ["batch", self.own, "total", SIZE]))
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.stored)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


class Older(Decoder):
    """With MultiHeadAttention: what is padding is masked, and places are inputs."""

    own = HEADS

    def attention(self, x: str, n: int) -> str:
        q, k, v = (self.product(x, f"{letter}{n}", WIDTH, WIDTH) for letter in "qkv")
        q, k = (self.node("RotaryEmbedding", f"{name} position_ids cos sin", f"turned.{name}", num_heads=HEADS) for name in (q, k))
        inputs = f"{q} {k} {v}  mask  past.{n}.key past.{n}.value"
        outputs = (f"seen{n}", f"present.{n}.key", f"present.{n}.value")
        return self.product(self.node("MultiHeadAttention", inputs, *outputs, num_heads=HEADS, unidirectional=1), f"o{n}", WIDTH, WIDTH)

    def lengths(self) -> None:
        self.node("Cast", "attention_mask", "mask", own=False, to=TensorProto.INT32)

    def model(self) -> onnx.ModelProto:
        model = super().model()
        model.graph.input.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "new"]))
        return model


def shapes(new: int, past: int, batch: int = 1, room: int | None = None, own: int = OWN) -> dict[str, tuple[int, ...]]:
    """`room`: of the cache, where it has more than what came before needs."""
    cache = (batch, own, past if room is None else room, SIZE)
    caches = {f"past.{n}.{what}": cache for n in range(LAYERS) for what in ("key", "value")}
    return {"input_ids": (batch, new), "attention_mask": (batch, past + new), **caches}


def encoder(layers: int = 2) -> onnx.ModelProto:
    """Like BERT, as onnxruntime's optimizer for transformers writes it: embeddings count the tokens that are no padding, attention masks by
    these counts."""
    rng = np.random.default_rng(7)
    stored, nodes = [], []

    def store(name: str, *shape: int) -> str:
        stored.append(numpy_helper.from_array((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name))
        return name

    def node(op: str, inputs: list[str], *outputs: str, own: bool = True, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, outputs, name=f"/{outputs[0]}", domain="com.microsoft" if own else "", **attrs))
        return outputs[0]

    def vectors(name: str) -> list[str]:
        return [store(f"{name}.{part}", WIDTH) for part in "gb"]

    tables = [store(name, count, WIDTH) for name, count in (("words", WORDS), ("places", 64), ("texts", 2))]
    ids = ["input_ids", "token_type_ids", *tables, *vectors("embedded"), "attention_mask"]
    x = node("EmbedLayerNormalization", ids, "x", "counts", epsilon=1e-5)
    for n in range(layers):
        weights = [store(f"w{n}", WIDTH, 3 * WIDTH), store(f"b{n}", 3 * WIDTH)]
        seen = node("Attention", [x, *weights, "counts"], f"seen{n}", num_heads=HEADS)
        y = node("MatMul", [seen, store(f"o{n}", WIDTH, WIDTH)], f"y{n}", own=False)
        x = node("SkipLayerNormalization", [y, x, *vectors(f"n{n}"), store(f"ob{n}", WIDTH)], f"x{n}", epsilon=1e-5)
        inner = node("MatMul", [x, store(f"up{n}", WIDTH, INNER)], f"inner{n}", own=False)
        gelu = node("BiasGelu", [inner, store(f"ub{n}", INNER)], f"gelu{n}")
        y = node("MatMul", [gelu, store(f"down{n}", INNER, WIDTH)], f"z{n}", own=False)
        x = node("SkipLayerNormalization", [y, x, *vectors(f"m{n}"), store(f"db{n}", WIDTH)], f"m{n}", epsilon=1e-5)
    inputs = [
        helper.make_tensor_value_info(i, TensorProto.INT32, ["batch", "new"]) for i in ("input_ids", "token_type_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "new", WIDTH])]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)
