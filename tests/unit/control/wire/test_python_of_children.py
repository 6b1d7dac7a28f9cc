"""Which Python children run: drawn lists of programs, embedded interpreters, and where children look for modules."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from aspen_mp.control.wire import python
from aspen_mp.errors import ConfigError

WATCHDOG_S = 60
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
RUNTIME = """
import sys
import numpy as np, onnx
from onnx import TensorProto as T, helper as h
import aspen_mp
if __name__ == "__main__":
    exec(sys.argv[1])
    x = [h.make_tensor_value_info(name, T.FLOAT, [2]) for name in "xy"]
    model = h.make_model(h.make_graph([h.make_node("Neg", ["x"], ["y"])], "g", x[:1], x[1:]), opset_imports=[h.make_opsetid("", 17)])
    with aspen_mp.Runtime(workers=1) as runtime:
        assert (runtime.load(model).run({"x": np.ones(2, np.float32)})["y"] == -1).all()
    print("done")
"""
EMBEDDED = """
#include <Python.h>
int main(int argc, char **argv) {
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.parse_argv = 0;
  PyConfig_SetBytesString(&config, &config.program_name, "a-server-that-embeds");
  PyConfig_SetBytesArgv(&config, argc, argv);
  if (PyStatus_Exception(Py_InitializeFromConfig(&config))) return 3;
  PyConfig_Clear(&config);
  return PyRun_SimpleString(argv[1]) ? 4 : Py_FinalizeEx();
}
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Programs that might be a Python, by what they are."""
    tmp_path.joinpath("launcher").symlink_to(sys.executable)
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "uwsgi")
    for name, said in (("python3", "echo cpython-27"), ("python2.7", "exit 1"), ("pythonw", ":")):
        tmp_path.joinpath(name).write_text(f"#!/bin/sh\n{said}\n")
        tmp_path.joinpath(name).chmod(0o755)
    tmp_path.joinpath("python").write_text("not executable")
    found = {name: str(tmp_path / name) for name in ("launcher", "uwsgi", "python3", "python2.7", "pythonw", "python", "missing")}
    return found | {"true": shutil.which("true") or "/bin/true", "": "", "this": sys.executable, "folder": str(tmp_path)}


def says_so(program: str) -> bool:
    """Whether a program is this Python: an account of its own."""
    code = f"import sys; print('yes' if sys.version_info[:2] == {sys.version_info[:2]} else 'no')"
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return done.stdout == "yes\n"


@pytest.mark.parametrize("seed", range(12))
def test_drawn_candidates(seed: int, programs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(seed)
    chosen = [programs[name] for name in drawn.sample(sorted(programs), drawn.randint(1, 6))]
    monkeypatch.delenv(python.VARIABLE, raising=False)
    monkeypatch.setattr(python, "_candidates", lambda: chosen)
    python.interpreter.cache_clear()
    right = [each for each in chosen if says_so(each)]
    named = [each for each in right if "python" in os.path.basename(each)]
    try:
        if right:
            assert python.interpreter() == (named or right)[0], chosen
        else:
            with pytest.raises(ConfigError, match=f"Set {python.VARIABLE} to the path"):
                python.interpreter()
    finally:
        python.interpreter.cache_clear()


def test_the_variable_comes_first(programs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for program in programs.values():
        python.interpreter.cache_clear()
        monkeypatch.setenv(python.VARIABLE, program)
        if not program or says_so(program):
            assert python.interpreter() == (program or sys.executable)
        else:
            with pytest.raises(ConfigError, match=f"{python.VARIABLE} is {program!r}"):
                python.interpreter()
    python.interpreter.cache_clear()


def test_the_usual_program_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(python.VARIABLE, raising=False)
    monkeypatch.setattr(python, "_says_so", lambda candidate: pytest.fail(f"{candidate} is run"))
    python.interpreter.cache_clear()
    assert python.interpreter() == sys.executable


@pytest.mark.parametrize("executable", ["/bin/true", "", None, "uwsgi", "/nowhere/at/all"])
def test_a_runtime_where_the_executable_is_no_python(executable: str | None, programs: dict[str, str], tmp_path: Path) -> None:
    """The script is elsewhere: children do not need its folder."""
    script = tmp_path / "program.py"
    script.write_text(RUNTIME)
    said = f"sys.executable = {programs.get(executable or '') or executable!r}; sys._base_executable = sys.executable"
    done = subprocess.run([sys.executable, script, said], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.stdout == "done\n", done.stderr


def test_where_there_is_no_python(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(RUNTIME)
    said = "from aspen_mp.control.wire import python; python._candidates = lambda: ['/bin/true', '']"
    done = subprocess.run([sys.executable, script, said], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert f"ConfigError: aspen-mp starts processes that run Python {VERSION}" in done.stderr
    assert python.VARIABLE in done.stderr.splitlines()[-1]


def test_an_embedded_interpreter(tmp_path: Path) -> None:
    include, library = sysconfig.get_config_var("INCLUDEPY"), sysconfig.get_config_var("LDVERSION")
    if not (Path(include) / "Python.h").exists() or shutil.which("gcc") is None:
        pytest.skip("needs gcc and the headers of Python")
    program = tmp_path / "server"
    source = tmp_path / "server.c"
    source.write_text(EMBEDDED)
    flags = [f"-I{include}", f"-L{sysconfig.get_config_var('LIBDIR')}", f"-lpython{library}"]
    if subprocess.run(["gcc", "-o", program, source, *flags], capture_output=True, check=False).returncode:
        pytest.skip("needs the library of Python to link with")
    # The editable package of a virtual environment is found through its files .pth, which an embedded interpreter does not read.
    code = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\nfrom aspen_mp.control.wire import python\n"
    code += "import subprocess, sys\nassert 'server' in sys.executable or not sys.executable, sys.executable\n"
    code += "print(subprocess.check_output(python.command('platform', function='python_version'))); print(python.interpreter())"
    done = subprocess.run([program, code], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert says_so(done.stdout.split()[-1])
    whole = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\nimport sys; sys.argv[1] = ''\n{RUNTIME}"
    environment = os.environ | {python.VARIABLE: sys.executable}
    done = subprocess.run([program, whole], capture_output=True, text=True, timeout=WATCHDOG_S, check=False, env=environment)
    assert done.stdout == "done\n", done.stderr


def test_where_children_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All orders of folders: those of the program, of users, and the working directory, with and without aspen_mp in it."""
    here, program, other = (tmp_path / name for name in ("here", "program", "other"))
    for folder in (here, program, other):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(program / "main.py")))
    for ours, asked in itertools.product((False, True), ("", str(here), f"{other}:", f":{program}")):
        if ours:
            (here / "aspen_mp").mkdir()
        monkeypatch.setenv("PYTHONPATH", asked)
        named = {each for each in asked.split(":") if each}
        for order in itertools.permutations(["", str(here), str(program), str(other), "/zip.zip"]):
            monkeypatch.setattr(sys, "path", list(order))
            found = python.search_path()
            assert found.count("/zip.zip") == found.count(str(other)) == found.count(str(program)) == 1
            assert str(here) in found if ours or str(here) in named else str(here) not in found
            in_place = [each or str(here) for each in order if (each or str(here)) in {str(other), "/zip.zip", *named}]
            assert found[: len(in_place)] == in_place, (order, asked)
        if ours:
            (here / "aspen_mp").rmdir()


def test_a_child_does_not_see_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in sys.stdlib_module_names:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working directory was run')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    command = python.running("import sys, select, queue, json; print(json.dumps([sys.argv, sys.path]))", "name", "-c", "--x")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    argv, path = json.loads(done.stdout)
    assert argv == ["name", "-c", "--x"]
    assert str(tmp_path) not in path
    assert "" not in path
