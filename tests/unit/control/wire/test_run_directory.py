"""Names of runtimes: claims, stale files, and directories that are not to be trusted."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys

import pytest

from aspen_mp.control.wire import run_directory
from aspen_mp.errors import AspenError, ProtocolError
from aspen_mp.system import descriptors, filesystem, sockets


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    # Longer than a socket address may be: names must not depend on where the directory is.
    base = tmp_path / ("x" * 120)
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base / "aspen-mp"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 65, "-x", "ä"])
def test_bad_names(name):
    with pytest.raises(ValueError, match="not a runtime name"):
        run_directory.Claim(name)


def test_claim_listen_connect_release(own_directory):
    claim = run_directory.Claim("default")
    listener = claim.listen()
    assert oct(own_directory.stat().st_mode & 0o777) == "0o700"
    assert oct((own_directory / "default.sock").stat().st_mode & 0o777) == "0o600"
    assert run_directory.names() == {"default": True}
    client = run_directory.connect("default")
    server, _ = listener.accept()
    client.sendall(b"hello")
    assert server.recv(5) == b"hello"
    with pytest.raises(AspenError, match=f"running already .process {os.getpid()}"):
        run_directory.Claim("default")
    for sock in (client, server, listener):
        sock.close()
    claim.release()
    assert os.listdir(own_directory) == []
    with pytest.raises(AspenError, match="no runtime named 'default'"):
        run_directory.connect("default")


def test_files_of_a_killed_runtime_do_not_matter(own_directory):
    code = "import os; from aspen_mp.control.wire.run_directory import Claim; c = Claim('gone'); s = c.listen(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert sorted(os.listdir(own_directory)) == ["gone.lock", "gone.sock"]
    assert run_directory.names() == {"gone": False}
    with pytest.raises(AspenError, match="no runtime named 'gone'"):
        run_directory.connect("gone")
    claim = run_directory.Claim("gone")
    claim.listen().close()
    assert run_directory.names() == {"gone": True}
    claim.release()


def test_clean_removes_dead_files_only(own_directory):
    claim = run_directory.Claim("alive")
    (own_directory / "dead.lock").touch()
    (own_directory / "dead.sock").touch()
    assert run_directory.clean() == ["dead"]
    assert os.listdir(own_directory) == ["alive.lock"]
    claim.release()


def test_untrustworthy_directories(own_directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    own_directory.symlink_to(elsewhere)
    with pytest.raises(ProtocolError, match="link"):
        run_directory.Claim("x")
    own_directory.unlink()
    own_directory.mkdir()
    own_directory.chmod(0o755)
    with pytest.raises(ProtocolError, match="0755"):
        run_directory.Claim("x")
    own_directory.rmdir()
    own_directory.touch()
    with pytest.raises(ProtocolError, match="not a directory"):
        run_directory.connect("x")


@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_directory_that_is_removed_while_it_is_made_is_made_again(own_directory, monkeypatch, call):
    """A cleaner of temporary files comes between any two steps."""
    original = getattr(descriptors, call)
    removals = iter(range(3))

    def after_a_removal(*args, **kwargs):
        if own_directory.exists() and next(removals, None) is not None:
            own_directory.rmdir()
        return original(*args, **kwargs)

    monkeypatch.setattr(descriptors, call, after_a_removal)
    claim = run_directory.Claim("default")
    claim.listen().close()
    assert next(removals, None) is None
    assert run_directory.names() == {"default": True}
    claim.release()


def test_lock_file_that_is_a_link_is_not_followed(own_directory, tmp_path):
    own_directory.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (own_directory / "x.lock").symlink_to(victim)
    with pytest.raises(AspenError, match="symbolic"):
        run_directory.Claim("x")
    assert victim.read_text() == "precious"


def test_who_looks_or_cleans_is_in_nobody_s_way(own_directory):
    """Claims over the files of the killed, while other processes ask which runtimes there are, and clean up."""
    code = "import sys; from aspen_mp.control.wire.run_directory import clean, names; print(flush=True)\nwhile True: names(); clean()"
    lookers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for looker in lookers:
            assert looker.stdout is not None
            looker.stdout.readline()
        for _ in range(2000):
            claim = run_directory.Claim("busy")
            assert run_directory.names() == {"busy": True}
            os.close(claim._lock)  # as if it had been killed
            os.close(claim._dir)
            assert run_directory.names() in ({"busy": False}, {})
    finally:
        for looker in lookers:
            looker.kill()
            looker.communicate()


@pytest.mark.parametrize("base", ["missing", "file/below"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, monkeypatch, base):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / base))
    with pytest.raises(AspenError, match=f"{base}/aspen-mp, which cannot be made"):
        run_directory.Claim("default")


@pytest.mark.parametrize("service", [True, False])
def test_sessions_and_services_find_each_other_s_runtimes(tmp_path, monkeypatch, service):
    """A service has no XDG_RUNTIME_DIR; a session has one."""
    usual = (str(tmp_path / "user" / "aspen-mp"), str(tmp_path / "tmp-aspen-mp"))
    (tmp_path / "user").mkdir()
    monkeypatch.setattr(run_directory, "_usual", lambda: usual)

    def be(a_service):
        monkeypatch.setenv("XDG_RUNTIME_DIR", "" if a_service else str(tmp_path / "user"))

    be(service)
    claim = run_directory.Claim("web")
    listener = claim.listen()
    assert os.listdir(usual[service]) != []
    be(not service)
    assert run_directory.names() == {"web": True}
    run_directory.connect("web").close()
    with pytest.raises(AspenError, match=f"'web' is running already .in {usual[service]}"):
        run_directory.Claim("web")
    with pytest.raises(AspenError, match=f"in {usual[not service]} or {usual[service]} .running: web"):
        run_directory.connect("other")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    assert run_directory.names() == {}
    with pytest.raises(AspenError, match=f"one runs in {usual[service]}: unset XDG_RUNTIME_DIR"):
        run_directory.connect("web")
    be(service)
    os.chmod(usual[service], 0o755)
    be(not service)
    assert run_directory.names() == {}  # nobody's but ours, or not at all
    claim.release()
    listener.close()


@pytest.mark.parametrize("call", ["mkdir", "open", "ftruncate", "pwrite", "rename", "bind"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_full_directory_is_named(call, number, own_directory, monkeypatch):
    """Whichever step finds that the directory is full or cannot be written to."""

    def fail(*args, **named):
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **named)
        raise OSError(number, os.strerror(number))

    if call == "bind":
        monkeypatch.setattr(sockets.socket, "bind", fail)
    else:
        room = filesystem if call in {"mkdir", "rename"} else descriptors
        real = getattr(room, call)
        monkeypatch.setattr(room, call, fail)
    with pytest.raises(AspenError, match=re.escape(str(own_directory))) as raised:
        run_directory.Claim("default").listen()
    assert os.strerror(number) in str(raised.value)
    assert "XDG_RUNTIME_DIR" in str(raised.value)


def test_a_missing_directory_is_named(own_directory, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own_directory / "not" / "there"))
    with pytest.raises(AspenError, match=re.escape(str(own_directory / "not" / "there"))):
        run_directory.Claim("default")
