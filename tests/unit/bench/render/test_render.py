"""Documents are what their records say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest
import typer
from folders import ROOT

from aspen_mp.bench.cli.app import app
from aspen_mp.bench.coexecution import contention, deadlines, dynamic, priority, together
from aspen_mp.bench.figures import stacks
from aspen_mp.bench.figures.compare import Comparison, Entry
from aspen_mp.bench.figures.layers import Layers
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers import cases
from aspen_mp.bench.peers.rounds import OURS, OURS_BF16
from aspen_mp.bench.render import networks, pages, published, render

DOCUMENTS = [ROOT / "README.md", *(file for kind in ("tutorial", "howto", "explanation") for file in (ROOT / "docs" / kind).glob("*.md"))]
UNITS = "ms|µs|GB/s|GFLOP/s|TFLOP/s|images/s|requests/s|rows/s"
FIGURE = re.compile(rf"\d ?({UNITS})\b|\b0\.\d+ of\b|\d times (as|faster)|\d ?[×x] faster")
"""What looks like something that was measured."""
GENERATED = re.compile(r"<!-- bench: \w+ -->.*?<!-- end -->|```.*?```|`[^`]*`", re.DOTALL)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what rendering reads and writes."""
    shutil.copytree(ROOT / render.RESULTS, tmp_path / render.RESULTS)
    shutil.copytree(ROOT / render.DOCS, tmp_path / render.DOCS)
    shutil.copytree(ROOT / render.SCHEMAS, tmp_path / render.SCHEMAS)
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "docs").mkdir(exist_ok=True)
    shutil.copy(ROOT / "docs/index.md", tmp_path / "docs")
    return tmp_path


def test_documents_are_up_to_date() -> None:
    assert render.stale(ROOT) == [], "run: aspen-mp bench render"


def test_a_changed_record_makes_its_documents_stale(tree: Path) -> None:
    peers = published.of(published.read(tree / render.RESULTS), "peers")[0]
    document = json.loads(peers.file.read_text())
    engine = document["result"]["cases"][0]["engines"][0]
    engine["median"] *= 2
    peers.file.write_text(json.dumps(document))
    stale = render.stale(tree)
    assert {Path("README.md"), render.DOCS / "networks.md"} <= set(stale)
    assert any(file.suffix == ".svg" for file in stale)
    assert render.write(tree) == stale
    assert render.stale(tree) == []


def test_a_document_without_a_record_is_stale(tree: Path) -> None:
    (tree / render.DOCS / "old.md").write_text("# Figures of long ago\n")
    assert render.write(tree) == [render.DOCS / "old.md"]
    assert not (tree / render.DOCS / "old.md").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"disturbed": ["Somebody compiled."]}, "disturbed"), ({"benchmark": "nonsense"}, "nonsense"), ({"result": None}, "peers.json")],
)
def test_a_record_that_must_not_be_published_is_named(tree: Path, change: dict[str, object], message: str) -> None:
    file = next((tree / render.RESULTS).glob("*/peers.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message) as error:
        published.read(tree / render.RESULTS)
    assert str(file) in str(error.value)


def test_a_record_of_stacks_has_a_page_and_a_chart(tree: Path) -> None:
    """One of networks' layers alone has tables only."""
    peers = published.of(published.read(tree / render.RESULTS), "peers")[0]
    document = json.loads(peers.file.read_text())
    entries = [Entry(label, engine, 2, ms, ms, ms, ms) for label, engine, ms in ((OURS, OURS, 1.0), ("torch", "torch", 4.0))]
    chain = stacks.Chain((1, 64, 8, 8), [stacks.Point(n, Comparison("pool_blocks", None, entries)) for n in (1, 4)])
    measured = stacks.StacksResult([chain], [Comparison("sppf", None, entries)])
    counted = stacks.StacksResult(layers=[Layers("vgg11_bn", 36, 25, 0.082, 3, 0.5)])
    for name, result in (("stacks", measured), ("stacks-table", counted)):
        found = document | {"benchmark": "stacks", "result": msgspec.to_builtins(result)}
        (peers.file.parent / f"{name}.json").write_text(json.dumps(found))
    picture, page = render.DOCS / f"{peers.folder}-stacks.svg", render.DOCS / "stacks.md"
    assert {picture, page} <= set(render.write(tree))
    assert render.stale(tree) == []
    text = (tree / page).read_text()
    assert "### Blocks on 1×64×8×8" in text
    assert text.count(picture.name) == 1
    for row in ("4 | 1.00 | 4.00 | – | 0.25", "SPPF | 1.00 | 4.00 | – | 0.25", "VGG-11 with BatchNorm | 36 | 25 | 8.2% | 3 | 50.0%"):
        assert f"| {row} |" in text
    assert "1×64×8×8" in (tree / picture).read_text()
    ratios = {(pair.case, pair.engine): pair.ratio for pair in networks.compared(published.read(tree / render.RESULTS))}
    assert ratios["pool_blocks", "torch"] == ratios["sppf", "torch"] == 0.25


def test_errors_and_defaults_have_tables(tree: Path) -> None:
    peers = published.of(published.read(tree / render.RESULTS), "peers")[0]
    document = json.loads(peers.file.read_text())
    case = document["result"]["cases"][0]
    assert "largest difference from the network in float64" not in pages.all_pages([peers], tree / "none.json")["networks"]
    for k, engine in enumerate(case["engines"]):
        engine["accuracy"] = {"error": 0.001 * (k + 1), "top1": 0.875, "same": None if engine["engine"] == "onnxruntime" else 1.0}
    case["inputs"] = 8
    peers.file.write_text(json.dumps(document))
    bf16 = case["engines"][0] | {"engine": OURS_BF16, "median": 0.5, "accuracy": {"error": 0.5, "top1": None, "same": None}}
    others = document | {"benchmark": "defaults", "result": {"absent": [], "cases": [case | {"engines": [*case["engines"], bf16]}]}}
    (peers.file.parent / "defaults.json").write_text(json.dumps(others))
    assert render.DOCS / "networks.md" in render.write(tree)
    assert render.stale(tree) == []
    text = (tree / render.DOCS / "networks.md").read_text()
    label = networks.name(case["case"])
    assert f"| {label} | 8 | 1.0e-03, 88% / 100% | 2.0e-03, 88% | 3.0e-03, 88% / 100% |" in text
    assert "`bench defaults`" in text
    assert "| network | inputs | aspen-mp | ONNX Runtime | OpenVINO | aspen-mp, bf16 |" in text
    assert f"| {label} | 8 | 1.0e-03, 88% / 100% | 2.0e-03, 88% | 3.0e-03, 88% / 100% | 5.0e-01 |" in text
    assert "each runtime's error" in text.replace("\n", " ")


def several() -> dict[str, object]:
    """A result of each benchmark of several networks at once."""
    spread = Spread.of([0.010, 0.020])
    shares = [together.Share(spread, spread)] * 2
    entries = [together.Entry(OURS, [80.0], [100.0], shares, 0.8), together.Entry("openvino", [90.0], [99.0], shares, 0.91, 1.125)]
    group = together.Group(["gpt2@seq=1", "resnet50"], [3, 1], entries, together.Bound(76, 10, 50, 40))
    times = priority.Quantiles.of([4.0, 5.0, 6.0])
    scene = priority.SceneResult(priority.SCENES[0], [priority.Entry(OURS, times, times, [10.0], [8.0], 0.8)])
    points = [deadlines.Point(load, 100, 7, 90, spread, spread) for load in (0.5, 1.5)]
    met = deadlines.DeadlinesResult([0, 1], ["resnet50"], 5, [20.0], [100.0], [deadlines.Curve(OURS, points)])
    line = dynamic.Line(0, "resnet50", spread, 30.0, [0.125, 0.375], [20.0, 21.0])
    course = dynamic.DynamicResult([0, 1], [["resnet50"]], 0.5, [dynamic.Course(OURS, [line], [0.97])])
    pairs = [contention.Pair(a, b, 1.25, [1.25], 1.3) for a in "cm" for b in "cm"]
    meetings = [contention.Meeting("aligned, a core each", [60.0]), contention.Meeting("opposed, a core each", [48.0])]
    met_phases = contention.ContentionResult([0, 1], 512, [contention.Kind(kind, 8.0, 30.0) for kind in "cm"], pairs, meetings)
    return {
        "together": together.TogetherResult([0, 1], [group]),
        "priority": priority.PriorityResult([0, 1], [scene]),
        "deadlines": met,
        "dynamic": course,
        "contention": met_phases,
    }


def test_records_of_several_networks_have_a_page_and_charts(tree: Path) -> None:
    peers = published.of(published.read(tree / render.RESULTS), "peers")[0]
    document = json.loads(peers.file.read_text())
    for name, result in several().items():
        (peers.file.parent / f"{name}.json").write_text(json.dumps(document | {"benchmark": name, "result": msgspec.to_builtins(result)}))
    pictures = {render.DOCS / f"{peers.folder}-{name}.svg" for name in several()}
    assert {render.DOCS / "several-networks.md", *pictures} <= set(render.write(tree))
    assert render.stale(tree) == []
    text = (tree / render.DOCS / "several-networks.md").read_text()
    for row in (
        "3 × GPT-2, 1 token + ResNet-50 | 80.0 | 0.800 | 0.910 | 0.760 | 0.89",
        "aspen-mp | 5.00 | 5.00 | 6.00 | 1.00 | 1.20 | 1.00",
        "aspen-mp | 90.0% | 90.0%",
        "1.5 | 7.0% | 96.8% | 20.0",
        "1 | ResNet-50 | 20.0 (20.0)",
        "opposed, a core each | 48.0 | 0.800",
    ):
        assert f"| {row} |" in text
    assert "### MobileNetV2 every 30 ms beside 3 × VGG-16" in text
    assert "a median error of 4.0%" in text


def test_a_readme_without_its_lines_is_refused(tree: Path) -> None:
    (tree / "README.md").write_text("# aspen-mp\n")
    with pytest.raises(ValueError, match="bench: peers"):
        render.stale(tree)


def test_the_commands_of_records_exist() -> None:
    commands = set(typer.main.get_command(app).commands)
    for item in published.read(ROOT / render.RESULTS):
        program, bench, name, *rest = shlex.split(item.record.command)
        assert (program, bench, name) == ("aspen-mp", "bench", item.record.benchmark)
        assert name in commands
        for word in rest:
            if word.partition("@")[0] in networks.NAMES:
                cases.parse(word)


def test_losses_are_listed_with_reasons(tmp_path: Path) -> None:
    records = published.read(ROOT / render.RESULTS)
    text = pages.losses(records, tmp_path / "none.json")
    assert str(len(networks.compared(records))) in text
    assert text.count("\n| ") == (len(networks.losses(records)) + 2 if networks.losses(records) else 0)
    assert text.count("not known") == len(networks.losses(records))


def test_reasons_name_cases_as_records_do() -> None:
    reasons = json.loads((ROOT / render.RESULTS / "reasons.json").read_text("utf-8"))
    assert list(reasons) == sorted(reasons)
    compared = {pair.case for pair in networks.compared(published.read(ROOT / render.RESULTS))}
    assert [case for case in reasons if case not in compared and cases.parse(case).label != case] == []


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_figures_come_from_records(file: Path) -> None:
    found = FIGURE.search(GENERATED.sub("", file.read_text("utf-8")))
    assert found is None, f"{found and found[0]!r} was measured: publish its record and let `aspen-mp bench render` write it"


@pytest.mark.parametrize(
    "text", ["takes 0.74 of onnxruntime's time", "answers in 9.1 ms", "reads 21 GB/s", "is 1.6 times as fast", "3x faster"]
)
def test_a_figure_is_recognised(text: str) -> None:
    assert FIGURE.search(text)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("resnet50", "ResNet-50"),
        ("bert_base@seq=128", "BERT-base, 128 tokens"),
        ("vgg16@dtype=int8_dynamic,batch=8", "VGG-16, int8, dynamic, batch 8"),
    ],
)
def test_networks_have_names(case: str, name: str) -> None:
    assert networks.name(case) == name
