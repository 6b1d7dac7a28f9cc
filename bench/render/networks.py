"""Tables of networks beside other runtimes, and of where we are slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aspen_mp.bench.figures.stacks import ours_by
from aspen_mp.bench.peers.accuracy import Accuracy
from aspen_mp.bench.peers.report import PeersResult
from aspen_mp.bench.peers.rounds import OURS, CaseResult, EngineResult
from aspen_mp.bench.render.markdown import number, table
from aspen_mp.bench.render.published import Published, of

NAMES = {
    **{f"resnet{n}": f"ResNet-{n}" for n in (18, 34, 50, 101, 152)},
    **{f"vgg{n}": f"VGG-{n}" for n in (11, 13, 16, 19)},
    **{f"vgg{n}_bn": f"VGG-{n} with BatchNorm" for n in (11, 13, 16, 19)},
    "bert_base": "BERT-base",
    "bert_large": "BERT-large",
    "gpt2": "GPT-2",
    "mobilenet_v2": "MobileNetV2",
    "efficientnet_b0": "EfficientNet-B0",
    "convnext_tiny": "ConvNeXt-Tiny",
    "squeezenet1_0": "SqueezeNet 1.0",
    "squeezenet1_1": "SqueezeNet 1.1",
    "yolov3": "YOLOv3",
    **{f"densenet{n}": f"DenseNet-{n}" for n in (121, 161, 169, 201)},
    "inception_v3": "Inception v3",
    "vit_b_16": "ViT-B/16",
    "unet": "U-Net",
    "alexnet": "AlexNet",
    "vgg_classifier": "VGG-16's fully connected layers",
    "phases": "phases of arithmetic and memory",
    "pool_blocks": "chain of pooling blocks",
    "sppf": "SPPF",
    "poolformer": "PoolFormer's mixers",
    "inception_pools": "Inception's pools",
    "depthwise_chain": "depthwise chain",
}
"""How people call networks of the zoo."""
ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch", "torch.compile": "torch.compile"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A network on another runtime. `ratio`: our time by its, the median of the rounds; of texts of new lengths, all requests together."""

    case: str
    machine: str
    threads: int
    engine: str
    ratio: float


def name(case: str) -> str:
    """`bert_base@seq=128` as people would say it. Text behind a comma and a space stays."""
    case, *more = case.split(", ", 1)
    network, _, options = case.partition("@")
    sizes = {"seq": "{} tokens", "batch": "batch {}", "dtype": "{}", "precision": "{}", "image": "{} pixels"}
    sizes |= {"blocks": "length {}", "channels": "{} channels"}
    words = []
    for option in options.split(",") if options else ():
        key, _, value = option.partition("=")
        words.append("1 token" if option == "seq=1" else sizes.get(key, key + " {}").format(value.replace("_", ", ")))
    return ", ".join([NAMES.get(network, network), *words, *more])


def ours(case: CaseResult) -> EngineResult | None:
    return next((engine for engine in case.engines if engine.engine == OURS), None)


def peers(result: PeersResult) -> list[str]:
    """The other engines, in the order in which they were measured."""
    return list(dict.fromkeys(engine.engine for case in result.cases for engine in case.engines if engine.engine != OURS))


def spread(case: CaseResult, other: EngineResult) -> str:
    """Our time by another's: the median of the rounds, and the range that they span."""
    own = ours(case)
    if own is None or other.ratio_median is None:
        return ""
    ratios = [a / b for a, b in zip(own.rounds_ms, other.rounds_ms, strict=True)]
    return f"{other.ratio_median:.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def comparison(item: Published, *, brief: bool = False) -> str:
    """Milliseconds of each engine, and our time by that of the fastest other. `brief`: without the range of rounds."""
    result: PeersResult = item.record.result
    others = peers(result)
    threads = {case.threads for case in result.cases}
    rows = []
    for case in result.cases:
        own, best = ours(case), case.best_peer
        if own is None or best is None:
            continue
        times = {engine.engine: number(engine.median) for engine in case.engines}
        label = name(case.case) + ("" if len(threads) == 1 else f", {case.threads} cores")
        ratio = f"{best.ratio_median:.2f}" if brief else spread(case, best)
        rows.append([label, times[OURS], *(times.get(other, "–") for other in others), ratio])
    return table(["network", f"{OURS}, ms", *(f"{ENGINES[other]}, ms" for other in others), "ours / fastest other"], rows)


def with_errors(item: Published) -> str:
    """The table of times, and that of errors where there are some."""
    return "\n\n".join(part for part in (comparison(item), errors(item.record.result)) if part)


def errors(result: PeersResult) -> str:
    """Errors of each engine against float64, and how often it names the same class; empty where no case has any."""
    engines = [OURS, *(other for other in peers(result) if _judged(result, other))]
    rows = []
    for case in result.cases:
        found = {engine.engine: engine.accuracy for engine in case.engines if engine.accuracy is not None}
        if found:
            cells = [_accuracy(found[engine]) if engine in found else "–" for engine in engines]
            rows.append([name(case.case), case.inputs, *cells])
    if not rows:
        return ""
    columns = ["network", "inputs", *(called(engine) for engine in engines)]
    return f"{ERRORS}\n\n{table(columns, rows)}"


ERRORS = (
    "The next table has each runtime's error: the largest difference from the network in float64, relative to the largest output. "
    "The reference is the network in floats for every runtime and every file. "
    "Two shares stand behind the error: rows that name the class of float64, and the class of ONNX Runtime on the same file."
)
"""The text above a table of errors."""


def _judged(result: PeersResult, engine: str) -> bool:
    return any(each.accuracy is not None for case in result.cases for each in case.engines if each.engine == engine)


def _accuracy(found: Accuracy) -> str:
    """`4.2e-03, 98% / 100%`; what was not to be compared is left out."""
    shares = ["–" if share is None else f"{share:.0%}" for share in (found.top1, found.same)]
    said = "" if found.top1 is None and found.same is None else f", {shares[0]}" + ("" if found.same is None else f" / {shares[1]}")
    return ("–" if found.error is None else f"{found.error:.1e}") + said


def called(engine: str) -> str:
    """How people call an engine."""
    return ENGINES.get(engine, engine)


def defaults(item: Published) -> str:
    """Milliseconds of each engine with its own defaults, what OpenVINO chose, and errors."""
    result: PeersResult = item.record.result
    engines = [OURS, *peers(result)]
    rows = []
    for case in result.cases:
        times = {engine.engine: number(engine.median) for engine in case.engines}
        rows.append([name(case.case), *(times.get(engine, "–") for engine in engines)])
    settings = dict.fromkeys((called(each.engine), each.settings) for case in result.cases for each in case.engines if each.engine != OURS)
    said = "\n".join(f"- {engine}: {setting}" for engine, setting in settings)
    measured = table(["network", *(f"{called(engine)}, ms" for engine in engines)], rows)
    return "\n\n".join(part for part in (DEFAULTS, said, measured, errors(result)) if part)


DEFAULTS = (
    "Each runtime with its own defaults: only the cores are given. aspen-mp computes in float32 unless it is asked for less, "
    "so a column in bf16 stands beside. Runtimes that choose less by themselves are compared with that one."
)
"""The text above a table of defaults."""


def losses(published: Sequence[Published]) -> list[Comparison]:
    """Every case in which another runtime was faster, worst first."""
    return sorted((each for each in compared(published) if each.ratio > 1), key=lambda loss: -loss.ratio)


def compared(published: Sequence[Published]) -> list[Comparison]:
    """Every pair of a network and another runtime that the records hold."""
    found = [
        Comparison(case.case, item.record.machine.name, case.threads, engine.engine, engine.ratio_median)
        for item in of(published, "peers")
        for case in item.record.result.cases
        for engine in case.engines
        if engine.ratio_median is not None
    ]
    found += [
        Comparison(f"{result.case}, first {len(result.lengths)}", item.record.machine.name, len(result.cores), engine_name, total)
        for item in (*of(published, "lengths"), *of(published, "sizes"))
        for result in item.record.result
        for engine_name, (total, _) in result.ratios().items()
    ]
    found += [
        Comparison(result.case, item.record.machine.name, entry.cores, entry.engine, ratio)
        for item in of(published, "stacks")
        for result in item.record.result.comparisons
        for entry in result.entries
        if entry.engine != OURS and (ratio := ours_by(result, entry.label)) is not None
    ]
    return found
