"""Batch inference on a Ray cluster: Parquet of texts → embeddings → Parquet, or Parquet of images → classes → Parquet.

Without ``--address`` it starts a cluster whose nodes are processes of this machine. On each node all actors share one runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aspen_mp.ray import Predictor

TOKENS = 64
SIDE = 224
RESOURCE = "aspen_mp"
"""The resource that nodes with a runtime declare, so that actors go there: ``ray start --resources='{"aspen_mp": 1}'``."""


@contextmanager
def local_cluster(nodes: int) -> Iterator[None]:
    """Nodes of one CPU each on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    given = {"num_cpus": 1, "object_store_memory": 100 << 20, "resources": {RESOURCE: 1.0}}
    cluster = Cluster(initialize_head=True, head_node_args={**given, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**given)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


class Tokenizer:
    """Texts → inputs of the embedder, padded to one length."""

    def __init__(self) -> None:
        from aspen_mp.bench.demo.minilm import Encoder

        self._tokenizer = Encoder().tokenizer
        self._tokenizer.enable_truncation(TOKENS)
        self._tokenizer.enable_padding(length=TOKENS)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Column "text" → the model's three inputs beside it."""
        found = self._tokenizer.encode_batch(list(batch["text"]))
        ids, mask = (np.array([getattr(each, name) for each in found], np.int64) for name in ("ids", "attention_mask"))
        return {"text": batch["text"], "input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def scaled(batch: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a picture → the model's input."""
    pictures = np.stack(list(batch["pixels"])).reshape(-1, 3, SIDE, SIDE)
    return {"name": batch["name"], "input": pictures.astype(np.float32) / 255}


def classes(batch: dict[str, Any]) -> dict[str, Any]:
    """Scores → the class with the highest one."""
    return {"name": batch["name"], "class": batch["output"].argmax(axis=1)}


def texts(source: Path, target: Path, rows: int, actors: int, folder: Path) -> None:
    """Embeds texts with all-MiniLM-L6-v2."""
    import onnx
    import pyarrow as arrow
    import ray
    from pyarrow import parquet

    from aspen_mp.bench.demo import minilm, search

    sentences = [sentence.text for sentence in search.read_sentences()]
    source.mkdir()
    parquet.write_table(arrow.table({"text": [sentences[k % len(sentences)] for k in range(rows)]}), source / "texts.parquet")
    onnx.save(minilm.build(), folder / "minilm.onnx")
    tokens = ray.data.read_parquet(str(source), override_num_blocks=3 * actors).map_batches(
        Tokenizer, batch_size=64, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=0.5
    )
    predicted(tokens, {"model": str(folder / "minilm.onnx"), "keep": ["text"]}, actors).write_parquet(str(target))


def images(source: Path, target: Path, rows: int, actors: int, folder: Path) -> None:
    """Classifies pictures with SqueezeNet (random weights)."""
    import onnx
    import pyarrow as arrow
    import ray
    from pyarrow import parquet

    from aspen_mp.bench import models

    random = np.random.default_rng(0)
    pixels = arrow.array(random.integers(0, 256, rows * 3 * SIDE * SIDE, np.uint8))
    source.mkdir()
    table = arrow.table(
        {"name": [f"{k}.png" for k in range(rows)], "pixels": arrow.FixedSizeListArray.from_arrays(pixels, 3 * SIDE * SIDE)}
    )
    parquet.write_table(table, source / "images.parquet")
    onnx.save(models.build("squeezenet1_1", batch=8), folder / "squeezenet.onnx")
    pictures = ray.data.read_parquet(str(source), override_num_blocks=3 * actors).map_batches(scaled, batch_size=32, num_cpus=0.5)
    scores = predicted(pictures, {"model": str(folder / "squeezenet.onnx"), "keep": ["name"]}, actors)
    scores.map_batches(classes, num_cpus=0.5).write_parquet(str(target))


def predicted(dataset: Any, arguments: dict[str, Any], actors: int) -> Any:
    """The dataset through `Predictor`."""
    import ray

    pool = ray.data.ActorPoolStrategy(size=actors)
    return dataset.map_batches(
        *(Predictor,), fn_constructor_kwargs=arguments, batch_size=32, compute=pool, num_cpus=0, resources={RESOURCE: 0.1}
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Batch inference on a Ray cluster.")
    parser.add_argument("job", choices=["texts", "images"], help="What to do.")
    parser.add_argument("--target", type=Path, help="Folder for the resulting Parquet files (default: none is kept).")
    parser.add_argument("--rows", type=int, default=256, help="Number of rows (default: 256).")
    parser.add_argument("--nodes", type=int, default=3, help="Nodes of the local cluster (default: 3).")
    parser.add_argument("--actors", type=int, default=3, help="Number of actors (default: 3).")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, local_cluster(asked.nodes):
        from pyarrow import parquet

        folder = Path(name)
        target = asked.target or folder / "target"
        began = time.perf_counter()
        {"texts": texts, "images": images}[asked.job](folder / "source", target, asked.rows, asked.actors, folder)
        seconds = time.perf_counter() - began
        found = parquet.read_table(target)
    report = {"rows": found.num_rows, "columns": found.column_names, "rows_per_s": found.num_rows / seconds}
    print(json.dumps(report) if asked.json else f"{report['rows']} rows with columns {', '.join(found.column_names)} in {seconds:.1f} s")


if __name__ == "__main__":
    main()
