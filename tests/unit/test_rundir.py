"""Names of runtimes: claims, stale files, and directories that are not to be trusted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aspen_mp.control import rundir
from aspen_mp.errors import AspenError, ProtocolError


@pytest.fixture(autouse=True)
def run_directory(tmp_path, monkeypatch):
    # Longer than a socket address may be: names must not depend on where the directory is.
    base = tmp_path / ("x" * 120)
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base / "aspen-mp"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 65, "-x", "ä"])
def test_bad_names(name):
    with pytest.raises(ValueError, match="no runtime name"):
        rundir.Claim(name)


def test_claim_listen_connect_release(run_directory):
    claim = rundir.Claim("default")
    listener = claim.listen()
    assert oct(run_directory.stat().st_mode & 0o777) == "0o700"
    assert oct((run_directory / "default.sock").stat().st_mode & 0o777) == "0o600"
    assert rundir.names() == {"default": True}
    client = rundir.connect("default")
    server, _ = listener.accept()
    client.sendall(b"hello")
    assert server.recv(5) == b"hello"
    with pytest.raises(AspenError, match=f"running already .process {os.getpid()}"):
        rundir.Claim("default")
    for sock in (client, server, listener):
        sock.close()
    claim.release()
    assert os.listdir(run_directory) == []
    with pytest.raises(AspenError, match="no runtime named 'default'"):
        rundir.connect("default")


def test_files_of_a_killed_runtime_do_not_matter(run_directory):
    code = "import os; from aspen_mp.control import rundir; c = rundir.Claim('gone'); s = c.listen(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert sorted(os.listdir(run_directory)) == ["gone.lock", "gone.sock"]
    assert rundir.names() == {"gone": False}
    with pytest.raises(AspenError, match="no runtime named 'gone'"):
        rundir.connect("gone")
    claim = rundir.Claim("gone")
    claim.listen().close()
    assert rundir.names() == {"gone": True}
    claim.release()


def test_clean_removes_dead_files_only(run_directory):
    claim = rundir.Claim("alive")
    (run_directory / "dead.lock").touch()
    (run_directory / "dead.sock").touch()
    assert rundir.clean() == ["dead"]
    assert os.listdir(run_directory) == ["alive.lock"]
    claim.release()


def test_untrustworthy_directories(run_directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    run_directory.symlink_to(elsewhere)
    with pytest.raises(ProtocolError, match="link"):
        rundir.Claim("x")
    run_directory.unlink()
    run_directory.mkdir()
    run_directory.chmod(0o755)
    with pytest.raises(ProtocolError, match="0755"):
        rundir.Claim("x")
    run_directory.rmdir()
    run_directory.touch()
    with pytest.raises(ProtocolError, match="no directory"):
        rundir.connect("x")


def test_lock_file_that_is_a_link_is_not_followed(run_directory, tmp_path):
    run_directory.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run_directory / "x.lock").symlink_to(victim)
    with pytest.raises(AspenError, match="symbolic"):
        rundir.Claim("x")
    assert victim.read_text() == "precious"


def test_who_looks_or_cleans_is_in_nobody_s_way(run_directory):
    """Claims over the files of the killed, while other processes ask which runtimes there are, and clean up."""
    code = "import sys; from aspen_mp.control import rundir; print(flush=True)\nwhile True: rundir.names(); rundir.clean()"
    lookers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for looker in lookers:
            assert looker.stdout is not None
            looker.stdout.readline()
        for _ in range(2000):
            claim = rundir.Claim("busy")
            assert rundir.names() == {"busy": True}
            os.close(claim._lock)  # as if it had been killed
            os.close(claim._dir)
            assert rundir.names() in ({"busy": False}, {})
    finally:
        for looker in lookers:
            looker.kill()
            looker.communicate()


@pytest.mark.parametrize("base", ["missing", "file/below"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, monkeypatch, base):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / base))
    with pytest.raises(AspenError, match=f"{base}/aspen-mp, which cannot be made"):
        rundir.Claim("default")
