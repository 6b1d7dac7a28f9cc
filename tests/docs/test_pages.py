"""Every block of code of the site and of README.md runs, each page in a directory and a process of its own (docs/README.md)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import folders
import pytest
from blocks import blocks, pages

from aspen_mp.bench import models

pytestmark = pytest.mark.xdist_group("pages")  # one after the other: pages listen on ports
WATCHDOG_S = 300.0
RUNNER = Path(__file__).with_name("run_page.py")
MODELS = {
    "model.onnx": lambda: models.build("squeezenet1_1"),
    "resnet50.onnx": lambda: models.build("resnet50"),
    "bert.onnx": lambda: models.build("bert_base", symbolic=True, **models.miniature("bert_base")),
}
"""What the directory of each page can hold; docs/README.md lists them."""


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models and what pages keep between each other: plans, so that each network is planned once."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "models").mkdir()
    for name, make in MODELS.items():
        (folder / "models" / name).write_bytes(make().SerializeToString())
    return folder


def run_page(page: Path, shelf: Path, folder: Path) -> tuple[int, str]:
    """Run a page in `folder`. Return the exit status and what it printed.

    A page has copies of the models that it names, so that one that writes a file of the same name changes its own alone.
    """
    (folder / "page").mkdir()
    (folder / "run").mkdir(mode=0o700)
    text = page.read_text(encoding="utf-8")
    for name in MODELS:
        if name in text:
            shutil.copy(shelf / "models" / name, folder / "page")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_CACHE_HOME": str(shelf),
        "ASPEN_MP_CACHE": str(shelf / "plans"),
        "COLUMNS": "120",
    }
    command = [sys.executable, str(RUNNER), str(page)]
    with (folder / "printed").open("w+") as printed:
        process = subprocess.Popen(
            command, cwd=folder / "page", env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            status = process.wait(WATCHDOG_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            status = process.wait()
        printed.seek(0)
        return status, printed.read()


def _name(page: Path) -> str:
    return page.relative_to(folders.ROOT).as_posix()


@pytest.mark.parametrize("page", [pytest.param(page, id=_name(page)) for page in pages()])
def test_blocks_of_page_run(page: Path, request: pytest.FixtureRequest) -> None:
    if blocks(page.read_text(encoding="utf-8")):
        status, printed = run_page(page, request.getfixturevalue("shelf"), request.getfixturevalue("tmp_path"))
        print(printed)
        assert status == 0, printed


def test_conventions_of_blocks() -> None:
    text = """# Page
<!-- python
x = 1

y = 2
-->
```python
assert x == 1
```
1. a step
   ```sh
   true
   ```
<!-- not run: it needs root -->
```sh
reboot
```
<!-- needs: no_such_module -->
```python
import no_such_module
```
<!-- needs: json -->
```python
import json
```
<!-- file: app.py -->
```python
import page
```
```toml
a = 1
```
```{toctree}
other
```
"""
    found = [(block.action, block.text, block.line, block.name) for block in blocks(text)]
    assert found == [
        ("python", "x = 1\n\ny = 2\n", 2, ""),
        ("python", "assert x == 1\n", 7, ""),
        ("sh", "true\n", 11, ""),
        ("python", "import json\n", 23, ""),
        ("file", "import page\n", 27, "app.py"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```bash\ntrue\n```\n", "line 1: a block is one of"),
        ("```\ntrue\n```\n", "line 1: a block is one of"),
        ("text\n\n    indented\n", "line 3: an indented block"),
        ("<!-- not run -->\n```sh\n```\n", "line 1: write <!-- not run: REASON -->"),
        ("<!-- python x = 1 -->\n", "line 1: write"),
    ],
)
def test_other_blocks_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        blocks(text)


def test_a_page_that_fails_is_noticed(shelf: Path, tmp_path: Path) -> None:
    """By its exit status, with the line of the page; what it has left running is ended."""
    page = tmp_path / "page.md"
    sleeper = "sleep 1000 & echo $! > pid"
    planted = {"```sh\nfalse\n```": "returned non-zero", "```python\nx = 1\nraise KeyError(x)\n```": "line 6"}
    for k, (block, message) in enumerate(planted.items()):
        folder = tmp_path / str(k)
        folder.mkdir()
        page.write_text(f"```sh\n{sleeper}\n```\n{block}\n", encoding="utf-8")
        status, printed = run_page(page, shelf, folder)
        assert status == 1
        assert message in printed
        assert not Path("/proc", (folder / "page" / "pid").read_text().strip()).exists()
