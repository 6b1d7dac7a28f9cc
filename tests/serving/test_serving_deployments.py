"""The files for systemd and Kubernetes: their options are those of `aspen-mp serve`, and their probes are answered."""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import serving_tools as tools
import small_models

FILES = Path(__file__).parents[2] / "docs" / "howto" / "serving"
UNIT = FILES / "aspen-mp-serve.service"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    tools.save(tmp_path / "models", "mlp", 1, small_models.mlp("n"))
    return tmp_path / "models"


def without(options: list[str], *names: str) -> list[str]:
    """Options of a command without these, which have a value each."""
    found = list(options)
    for name in names:
        at = found.index(name)
        del found[at : at + 2]
    return found


def unit_options() -> list[str]:
    (line,) = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    program, verb, repository, *options = shlex.split(line.removeprefix("ExecStart="))
    assert (program, verb, repository) == ("/opt/venv/bin/aspen-mp", "serve", "/srv/models")
    return options


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/venv/bin/aspen-mp", sys.executable))
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], check=False, capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


def test_systemd_is_told(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(tools.WATCHDOG_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        options = without(unit_options(), "--unix-socket", "--port")
        with tools.serving(tmp_path, models, *options, "--unix-socket", tmp_path / "s") as server:
            assert manager.recv(100) == b"READY=1"
            with tools.client(str(tmp_path / "s")) as client:
                client.infer("mlp", tools.mlp_feeds())
            server.process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            with tools.client(server.address) as client:
                while client.ask("/v2/health/ready")[0] != 503:
                    pass
                client.infer("mlp", tools.mlp_feeds())  # --drain
            assert server.process.wait(tools.WATCHDOG_S) == 0


def test_kubernetes_probes_are_answered(models: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="needs the package pyyaml")
    document: dict[str, Any] = yaml.safe_load((FILES / "kubernetes.yaml").read_text())
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["aspen-mp", "serve", "/models"]
    options = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    drain, grace = float(options["--drain"]), float(options["--grace"])
    readiness = container["readinessProbe"]
    assert drain > 2 * readiness["periodSeconds"] * readiness["failureThreshold"]
    assert pod["terminationGracePeriodSeconds"] > drain + grace
    shorter = without(container["args"], "--port", "--drain")
    with tools.serving(tmp_path, models, *shorter, "--drain", "1") as server:
        address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        with tools.client(address) as client:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe]["httpGet"]
                assert asked["port"] == container["ports"][0]["name"]
                assert client.ask(asked["path"])[0] == 200
        server.process.send_signal(signal.SIGTERM)
        with tools.client(address) as client:
            while client.ask(readiness["httpGet"]["path"])[0] != 503:
                pass
            assert client.ask(container["livenessProbe"]["httpGet"]["path"])[0] == 200
        assert server.process.wait(tools.WATCHDOG_S) == 0
