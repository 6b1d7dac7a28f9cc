"""The command line as its users meet it: what it prints, what it writes, its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.bench import prediction
from aspen_mp.bench.records import record
from aspen_mp.bench.render import published
from aspen_mp.cli.documents import DOCUMENTS

WATCHDOG_S = 120


def cli(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aspen_mp.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd or "/", timeout=WATCHDOG_S)


def ok(*arguments: object, cwd: Path | None = None) -> str:
    done = cli(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_json(*arguments: object) -> Any:
    """The document that a command prints, which is as its schema says."""
    return document(arguments[0], ok(*arguments, "--json"))


def document(command: object, text: str) -> Any:
    kind = DOCUMENTS.get(str(command))
    if kind is not None:
        msgspec.json.decode(text, type=kind)
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x w), hidden = det(x xᵀ) without a kernel, batch and width symbolic."""
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "x"], ["square"]),
        helper.make_node("Det", ["square"], ["d"], name="determinant"),
    ]
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.linspace(-1, 1, 12))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3]), helper.make_tensor_value_info("d", TensorProto.FLOAT, [])],
        initializer=[w],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_version_and_help() -> None:
    import aspen_mp

    assert ok("--version").strip() == f"aspen-mp {aspen_mp.__version__}"
    text = ok("--help")
    for command in ("launch", "run", "plan", "coplan", "status", "top", "add", "remove", "scale", "stop", "doctor", "bench", "trace"):
        assert command in text
    assert "--check" in ok("run", "--help")


def test_run_with_files_checks_and_writes(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    text = ok("run", model, "--input", f"x={tmp_path / 'x.npy'}", "--workers", 2, "--repeat", 3, "--check", "--output", tmp_path / "out")
    assert "6x3" in text
    assert "median" in text
    assert "ok" in text
    w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
    assert np.load(tmp_path / "out" / "d.npy").shape == ()


def test_run_random_as_json(model: Path) -> None:
    report = as_json("run", model, "--random", "--batch", 5, "--workers", 1, "--check")
    assert report["workers"] == 1
    assert report["outputs"][0] == {"name": "y", "dtype": "float32", "shape": [5, 3]}
    assert report["latency_ms"]["runs"] > 1
    assert all(row["ok"] for row in report["check"])
    again = as_json("run", model, "--random", "--shape", "x=2x4", "--workers", 1)
    assert again["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 4]}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nosuch.onnx"], "no file 'nosuch.onnx'"),
        (["run", "zoo:nosuch"], "the zoo has no 'nosuch'"),
        (["run", "MODEL"], "no value for x (float32 batchx4)"),
        (["run", "MODEL", "--input", "z=f.npy"], "no input 'z'"),
        (["run", "MODEL", "--random", "--name", "a", "--workers", "2"], "its own workers"),
        (["run", "MODEL", "--workers", "0"], "--workers"),
        (["plan", "MODEL", "--shape", "x=5"], "not 5"),
        (["plan", "MODEL", "--cores", "8P+X"], "'X' is not a group of cores"),
        (["launch", "--cores", "a-b"], "not a list of CPUs"),
        (["launch", "--cores", "0-400"], "not a list of CPUs"),
        (["launch", "--name", "a/b"], "'a/b' is not a runtime name"),
        (["launch", "nosuch.onnx"], "no file 'nosuch.onnx'"),
        (["launch", "--detach", "nosuch.onnx"], "no file 'nosuch.onnx'"),
        (["launch", "--detach", "zoo:nosuch"], "the zoo has no 'nosuch'"),
        (["launch", "--workers", "1000"], "256"),
        (["status", "--name", "a/b"], "'a/b' is not a runtime name"),
        (["run", "MODEL", "--random", "--name", ""], "'' is not a runtime name"),
        (["trace", "--name", "-x"], "'-x' is not a runtime name"),
        (["scale", "1000"], "is not a number of workers. Give a number from 0 to 256, or 'auto'"),
        (["add", "1000"], "256"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_use_is_status_2(model: Path, arguments: list[str], message: str) -> None:
    done = cli(*(str(model) if a == "MODEL" else a for a in arguments))
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_failures_are_status_1_and_one_panel(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\xff" * 100)
    done = cli("run", bad, "--random", "--workers", 1)
    assert done.returncode == 1
    assert "ModelParseError" in done.stderr
    assert "Traceback" not in done.stderr
    done = cli("run", bad, "--random", "--workers", 1, "--json")
    assert done.returncode == 1
    assert document("error", done.stdout)["error"]["type"] == "ModelParseError"
    done = cli("status", "--name", "nobody-is-called-so")
    assert done.returncode == 1
    assert "nobody-is-called-so" in done.stderr


def test_plan(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.aspen"
    report = as_json("plan", model, "--batch", 8, "--cores", 4, "-o", file)
    assert report["cores"] == 4
    assert report["tiles"] >= report["ops"] > 0
    assert [row["name"] for row in report["layers"] if row["opaque"]] == ["determinant"]
    assert file.stat().st_size > 0
    many = as_json("plan", model, "--cores", "2P+2E", "--in-flight", 3)
    assert (many["machine"], many["cores"], many["power"], many["in_flight"]) == ("2@1+2@0.5", 4, 3.0, 3)
    assert many["shared"] is None
    most = as_json("plan", model, "--cores", "4", "--objective", "throughput")
    assert most["in_flight"] == most["shared"]["in_flight"] == 6
    assert 1 <= most["shared"]["cores"] <= 4
    assert "for 6 requests at a time" in " ".join(ok("plan", model, "--cores", "4", "--objective", "throughput").split())
    assert cli("plan", model, "--objective", "speed").returncode == 2
    assert 0 < many["longest_path_ms"] <= many["predicted_ms"] <= many["one_core_ms"]
    assert 0 < many["utilisation"] <= 1
    assert many["parallel_fraction"] <= 1
    assert many["requests_per_s"] > 0
    text = ok("plan", model, "--cores", "2@1+2@0.5")
    assert "2@1+2@0.5" in text
    assert "parallel fraction" in text
    text = ok("plan", model, "--explain")
    assert "determinant" in text
    assert "Det" in text
    assert "opaque" in text


def test_plan_says_why(model: Path) -> None:
    costliest = as_json("plan", model, "--batch", 8, "--cores", 2, "--why")["why"]
    assert "determinant" in costliest["nodes"][0]["nodes"]
    assert {reason["decision"] for reason in costliest["network"]} >= {"precision", "split"}
    asked = as_json("plan", model, "--batch", 8, "--cores", 2, "--why", "product")["why"]["nodes"]
    assert [node["nodes"][0] for node in asked] == ["product"]
    text = ok("plan", model, "--why", "product", "--cores", 2)
    assert re.search(r"^product.*GEMM.*ms on one core", text, re.MULTILINE)
    assert re.search(r"^tiles +1 tile of 1×3 ", text, re.MULTILINE)
    assert ok("plan", model, "--cores", 2, "--why").startswith("determinant")
    assert "why" not in as_json("plan", model)
    wrong = cli("plan", model, "--why", "produkt")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Similar names: 'product'" in " ".join(wrong.stderr.replace("│", " ").split())


def test_plan_names_conversions_of_levels(tmp_path: Path) -> None:
    info, number = helper.make_tensor_value_info, numpy_helper.from_array
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="there"),
        helper.make_node("DequantizeLinear", ["q", "other", "zero"], ["r"], name="back"),
        helper.make_node("Softmax", ["r"], ["y"], name="shares"),
    ]
    held = [number(np.array(v), n) for n, v in (("scale", np.float32(0.1)), ("other", np.float32(0.2)), ("zero", np.uint8(3)))]
    graph = helper.make_graph(nodes, "levels", [info("x", 1, [4, 8])], [info("y", 1, [4, 8])], held)
    file = tmp_path / "levels.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    rows = {row["name"]: row.get("why", "") for row in as_json("plan", file, "--explain")["layers"]}
    assert rows["there"] == "it reads an input of the network or a constant, which is f32"
    assert "differs from that of QuantizeLinear 'there'" in rows["back"]
    assert "feeds Softmax 'shares'" in rows["back"]
    (listed,) = [r for r in as_json("plan", file, "--why")["why"]["network"] if "levels" in r["choice"]]
    assert [other["choice"] for other in listed["tried"]] == ["'there' in bytes", "'back' in bytes"]


def test_plan_shows_stacks() -> None:
    layers = [row for row in as_json("plan", "zoo:pool_blocks", "--cores", 1)["layers"] if "stack" in row]
    shown = ok("plan", "zoo:pool_blocks", "--cores", 1, "--explain")
    assert sum(len(layer["stack"]["steps"]) for layer in layers) == 10, "in one sequence or more, as this machine's caches are large"
    for layer in layers:
        stack = layer["stack"]
        assert layer["kernel"] == "STACK"
        assert 0 < stack["together_ms"] < stack["apart_ms"]
        assert f"{stack['saved_bytes'] / 1e6:.2f}" in shown
    apart = as_json("plan", "zoo:pool_blocks", "--cores", 1, "--no-stacks")["layers"]
    assert sum(row["kernel"] == "POOL" for row in apart) == 10
    assert not any("stack" in row for row in apart)


def test_plan_shows_parts_of_the_batch_as_one_row() -> None:
    """Of so many images that no cache holds what a layer moves."""
    asked = ("plan", "zoo:squeezenet1_1", "--batch", 64, "--cores", 2)
    report = as_json(*asked, "--measure", "--rounds", 1)
    text = ok(*asked, "--explain")
    slices = max(row["batch_slice"][1] for row in report["layers"])
    assert slices > 1
    cut = [row["name"] for row in report["layers"] if row["batch_slice"] == [0, slices]]
    assert cut
    assert all(text.count(f"{name} ") == 1 for name in set(cut))
    assert f"{slices} slices of the batch" in text


def recorded(folder: Path, benchmark: str, *arguments: object) -> Any:
    """The result that a benchmark prints as JSON and records, as its own type."""
    file = folder / f"{benchmark}.json"
    printed = as_json("bench", benchmark, *arguments, "-o", file, "--keep-disturbed")
    assert printed == json.loads(file.read_text())
    return record.load(file, published.RESULTS[benchmark]).result


def test_bench_prediction(tmp_path: Path) -> None:
    rows = recorded(tmp_path, "prediction", "squeezenet1_1", "--rounds", 2, "--seconds", 0)
    assert all(len(prediction.cells(row)) == len(prediction.HEADINGS) for row in rows)
    assert "squeezenet1_1" in prediction.verdict(rows)
    for row in rows:
        assert row.error == pytest.approx(row.predicted_ms / row.median_ms - 1)
        assert min(row.kernel_ms, row.predicted_kernel_ms, row.schedule_ms, row.predicted_schedule_ms) > 0


def test_plan_measured(model: Path) -> None:
    report = as_json("plan", model, "--batch", 8, "--cores", 2, "--measure", "--rounds", 2)
    assert all(row["measured_ms"] >= row["measured_min_ms"] for row in report["layers"])
    assert [row["name"] for row in report["layers"] if row["opaque"]] == ["determinant"]
    assert next(row["measured_ms"] for row in report["layers"] if row["opaque"]) > 0
    assert report["measured"]["one_core_ms"] >= report["measured"]["min_ms"] > 0
    text = ok("plan", "zoo:squeezenet1_1", "--measure", "--rounds", 1)
    assert "GFLOP/s" in text
    assert "tile after tile" in text


def test_trace(model: Path, tmp_path: Path) -> None:
    """Of a model on a runtime of its own: file, picture, summary."""
    file, picture = tmp_path / "trace.json", tmp_path / "trace.png"
    report = as_json("trace", model, "--batch", 8, "--workers", 2, "--repeat", 3, "--concurrency", 2, "-o", file, "--png", picture)
    assert report["requests"]["complete"] == 3
    assert report["requests"]["models"] == {"small.onnx": 3}
    assert {"Det", "MatMul"} <= {op["op"].split(" ")[0] for op in report["ops"]}
    events = json.loads(file.read_text())["traceEvents"]
    assert len(events) == report["events_written"]
    assert sum(event["ph"] == "X" and event["cat"].startswith("tile") for event in events) == sum(w["tiles"] for w in report["workers"])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "median" in ok("trace", model, "--batch", 8, "--workers", 1, "--repeat", 1)
    drawn = tmp_path / "tiles.svg"
    assert as_json("trace", model, "--batch", 8, "--changed", 1, "--repeat", 1, "--tiles", drawn)["tiles"] == str(drawn)
    assert "tiles ran" in drawn.read_text()
    assert cli("trace", "--changed", 1).returncode == 2
    assert cli("trace", "--workers", 2).returncode == 2
    assert cli("trace", model, "-o", tmp_path / "no" / "such.json").returncode == 1


def test_bench_elastic(tmp_path: Path) -> None:
    picture = tmp_path / "elastic.png"
    report = recorded(tmp_path, "elastic", "squeezenet1_1", "--steps", "1,2,0,1", "--seconds", 0.3, "--plot", picture)
    assert [step.workers for step in report.steps] == [1, 2, 0, 1]
    assert report.lost == report.wrong == 0
    assert len(report.done_s) == len(report.began_s) > 0
    assert report.steps[0].effect_ms is None
    assert all(step.effect_ms > 0 for step in report.steps[1:])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "none lost, none wrong" in ok("bench", "elastic", "squeezenet1_1", "--steps", "1", "--seconds", 0.1)
    for steps in ("0,1", "1,0", "1,-1,1", "many"):
        assert cli("bench", "elastic", "squeezenet1_1", "--steps", steps).returncode == 2


def test_bench_storm(tmp_path: Path) -> None:
    picture = tmp_path / "storm.png"
    network = "squeezenet1_1@image=64"
    short = ("--seconds", 2, "--per-minute", 200, "--workers", 2, "--threads", 2, "--processes", 0)
    options = (*short, "--calm", 0.4, "--mix", "KILL=2,SEGV=1")
    report = recorded(tmp_path, "storm", network, *options, "--plot", picture)
    assert report.per_minute > 0
    assert report.lost == report.wrong == 0
    assert report.requests > 0
    assert {stroke.signal for stroke in report.strokes} <= {"KILL", "SEGV"}
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "none lost, none wrong" in ok("bench", "storm", network, *short, "--calm", 0)
    for mix in ("KILL", "KILL=x", "USR1=1", "KILL=0", "KILL=-1"):
        assert cli("bench", "storm", network, "--mix", mix).returncode == 2
    assert cli("bench", "storm", "no_such_network").returncode == 2


def test_bench_churn(tmp_path: Path) -> None:
    report = recorded(tmp_path, "churn", "squeezenet1_1@image=64", "--changes", 6, "--workers", 2)
    assert report.lost == report.wrong == 0
    assert len(report.changes) == 6
    assert "none lost, none wrong" in ok("bench", "churn", "squeezenet1_1@image=64", "--changes", 1, "--workers", 2)


def test_bench_cameras(tmp_path: Path) -> None:
    case = "yolov3@image=96,decode=1"
    (report,) = recorded(tmp_path, "cameras", case, "--cameras", 1, "--frames", 2, "--rounds", 1, "--seconds", 0.1, "--share", 0.02)
    assert [one.engine for one in report.watched][1:] == [fleet.engine for fleet in report.fleets][:1]
    assert [fleet.engine for fleet in report.fleets][1] == "aspen-mp, whole frames"
    for one in report.watched:
        assert len(one.whole_ms) == len(one.stream_ms) == 2
        assert 0 <= one.least <= one.same <= 1
    assert cli("bench", "cameras", "resnet50@image=64").returncode == 2


def test_bench_stream(tmp_path: Path) -> None:
    (report,) = recorded(tmp_path, "stream", "yolov3@image=64", "--percent", "0,5,100", "--rounds", 1)
    assert [part.percent for part in report.parts] == [0, 5, 100]
    assert report.wrong == 0
    for kind in ("bits", "values"):
        assert report.parts[0].work[kind] == 0
        assert 0 < report.parts[1].work[kind] <= report.parts[2].work[kind] <= 1
        assert report.bytes[kind] > 0
    assert cli("bench", "stream", "yolov3@image=64", "--percent", "101").returncode == 2
    assert cli("bench", "stream", "bert_base", "--percent", "0").returncode == 2


def test_bench_kernels(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    options = ("--kernels", "POOL", "--seconds", 0, "--isa", "portable", "-o", file, "--keep-disturbed")
    report = as_json("bench", "kernels", "squeezenet1_1", *options)["result"]
    assert report == json.loads(file.read_text())["result"]
    assert {row["kernel"] for row in report["calls"]} == {"POOL"}
    assert report["limits"]["portable"]["gflops"] > 0
    assert "of peak" in ok("bench", "kernels", "squeezenet1_1", "--kernels", "POOL", "--seconds", 0)
    assert cli("bench", "kernels", "nosuch").returncode == 2
    (row,) = as_json("bench", "shapes", "squeezenet1_1", "--folder", tmp_path)
    assert row["calls"] == len((tmp_path / "squeezenet1_1.txt").read_text().splitlines()) - 1


def test_doctor() -> None:
    report = as_json("doctor", "--clean")
    assert report["lease"]["workers"] == len(report["lease"]["cpus"]) >= 1
    assert report["isa"]["selected"] in report["isa"]["supported"]
    assert set(report["lease"]["cpus"]) <= {core["cpu"] for core in report["cores"]}
    assert {"runtimes", "segments"} == set(report["removed"])
    assert "A runtime would lease" in ok("doctor")


def test_a_closed_output_is_no_failure() -> None:
    for arguments in ("doctor", "doctor --json", "--version"):
        command = f"exec {sys.executable} -m aspen_mp.cli {arguments} >&-"
        done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False, cwd="/", timeout=WATCHDOG_S)
        assert (done.returncode, done.stderr) == (0, ""), arguments


def test_a_full_output_is_a_failure_without_a_traceback() -> None:
    for arguments in ("doctor", "doctor --json"):
        command = f"exec {sys.executable} -u -m aspen_mp.cli {arguments} >/dev/full"
        done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False, cwd="/", timeout=WATCHDOG_S)
        assert done.returncode == 1, arguments
        assert "No space left" in done.stderr
        assert "Traceback" not in done.stderr


def test_doctor_finds_and_removes_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "aspen-mp"
    folder.mkdir(mode=0o700)
    for suffix in ("lock", "sock"):
        (folder / f"gone.{suffix}").touch()
    (folder / "left.users").touch()
    assert as_json("doctor")["stale"]["runtimes"] == ["gone", "left"]
    assert as_json("doctor", "--clean")["removed"]["runtimes"] == ["gone", "left"]
    assert list(folder.iterdir()) == []


@pytest.fixture
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run directory of our own, so that no other runtime is in the way."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    for lock in (tmp_path / "aspen-mp").glob("*.lock"):
        cli("stop", "--name", lock.stem)


@pytest.mark.usefixtures("runtimes")
def test_life_of_a_detached_runtime(model: Path) -> None:
    report = as_json("launch", "--detach", "--name", "one", "--workers", 1, "--max-workers", 3, model)
    assert len(report["workers"]) == 1
    looks = [document("top", line) for line in ok("top", "--name", "one", "--count", 2, "--interval", 0.05, "--json").splitlines()]
    assert [len(look["workers"]) for look in looks] == [1, 1]
    assert looks[0]["runtime"]["ready"]
    last = ok("top", "--name", "one", "--count", 1, "--interval", 0.05)
    assert "worker-joined" in last
    assert last.endswith("\n")
    assert "aspen_mp_ready 1.0" in as_json("metrics", "--name", "one", "--once")["text"]
    done = cli("launch", "--detach", "--name", "one")
    assert done.returncode == 1
    assert "running already" in " ".join(done.stderr.replace("│", " ").split())
    status = as_json("status", "--name", "one")
    assert status["runtime"]["pid"] == report["pid"] != report["launcher"]
    assert [m["name"] for m in status["models"]] == ["small.onnx"]
    assert len(as_json("add", 1, "--name", "one")) == 2
    assert len(as_json("scale", 3, "--name", "one")) == 3
    assert len(as_json("remove", 2, "--name", "one")) == 1
    assert as_json("run", model, "--random", "--name", "one")["workers"] == 1
    trace = as_json("trace", "--name", "one", "--seconds", 0.1)
    assert trace["runtime"] == "one"
    assert [worker["worker"] for worker in trace["workers"]] == [0]
    assert as_json("trace", model, "--name", "one", "--batch", 2, "--repeat", 1)["requests"]["complete"] == 1
    text = ok("status", "--name", "one")
    assert "Workers" in text
    assert "small.onnx" in text
    assert as_json("doctor")["runtimes"]["running"] == ["one"]
    assert as_json("stop", "--name", "one") == {"name": "one", "stopped": True}
    assert cli("status", "--name", "one").returncode == 1
    assert as_json("doctor")["stale"] == {"runtimes": [], "segments": []}


def test_a_launch_that_fails_leaves_no_files(runtimes: Path) -> None:
    for detach in ([], ["--detach"]):
        done = cli("launch", *detach, "--cores", 4000, "--name", "failed")
        assert done.returncode == 1
        assert "CPU 4000 cannot be used" in " ".join(done.stderr.replace("│", " ").split())
        assert list((runtimes / "aspen-mp").iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_whoever_supervises_a_launch_learns_how_the_runtime_ended(runtimes: Path, number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aspen_mp.cli", "launch", "--name", "front", "--workers", "1", "--json", "--log", "off"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert process.stdout is not None
        said = ""
        while not said.endswith("\n}\n"):
            line = process.stdout.readline()
            assert line, said
            said += line
        os.kill(json.loads(said)["pid"], number)
        out, err = process.communicate(timeout=WATCHDOG_S)
        assert process.returncode == status, err
        assert ("RuntimeLost" in out) == (status == 1)
    finally:
        process.kill()
        process.communicate()


def test_a_launch_under_nohup_outlives_its_terminal(runtimes: Path) -> None:
    command = f"trap '' HUP; exec {sys.executable} -m aspen_mp.cli launch --name front --workers 1 --json --log off"
    process = subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "{\n"
        process.send_signal(signal.SIGHUP)
        assert as_json("status", "--name", "front")["runtime"]["ready"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WATCHDOG_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_launch_ends_on_signals(runtimes: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aspen_mp.cli", "launch", "--name", "front", "--workers", "1"], stderr=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert process.stderr is not None
        said = []
        while not said or "is ready" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        assert "aspen-mp[front] worker-joined worker=0 " in said[0]
        process.send_signal(number)
        assert process.wait(WATCHDOG_S) == 0
        assert "has ended" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    assert list((runtimes / "aspen-mp").iterdir()) == []
