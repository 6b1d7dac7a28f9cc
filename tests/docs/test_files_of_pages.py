"""A reader who copies what a page shows has every file that it uses: the page makes the file in sight, or says where it comes from."""

from __future__ import annotations

from pathlib import Path

import folders
import pytest
from blocks import FILES, pages, unexplained

FOLLOWED = ("howto", "tutorial", "docs", folders.ROOT.name)
"""Folders of pages that are followed step by step."""
PAGE = """# A page
{prose}

<!-- {hidden} -->
```sh
aspen-mp run odd.onnx
```
"""
HIDDEN = 'python\nonnx.save(model, "odd.onnx")\n'


def test_a_file_from_nowhere_is_found() -> None:
    assert unexplained(PAGE.format(prose="Run it.", hidden=HIDDEN)) == {"odd.onnx"}
    assert unexplained(PAGE.format(prose="`odd.onnx` is a model of yours.", hidden=HIDDEN)) == set()
    assert unexplained(PAGE.format(prose="Run it.", hidden="python\nx = 1\n") + "`odd.onnx` comes too late.") == {"odd.onnx"}
    assert unexplained(PAGE.format(prose=f"```python\n{HIDDEN.partition(chr(10))[2]}```", hidden="python\nx = 1\n")) == set()
    program = "\n\n<!-- file: app.py -->\n```python\nx = 1\n```\n\n```sh\npython app.py\n```\n"
    assert unexplained(f"# A page{program}") == {"app.py"}
    assert unexplained(f"# A page\nSave this as `app.py`:{program}") == set()
    assert (
        unexplained("# A page\nSave this as `app.py`:\n\n<!-- file: app.py -->\n```python\nx = 1\n```\n\n```sh\npython app.py\n```\n")
        == set()
    )


def test_files_are_known_by_their_names() -> None:
    text = 'aspen-mp run model.onnx -o out/profile.toml zoo:x "a.py" model.run(x.shape) 0.0.0.0:94'
    assert set(FILES.findall(text)) == {"model.onnx", "out/profile.toml", "a.py"}


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=f"{page.parent.name}/{page.name}") for page in pages() if page.parent.name in FOLLOWED]
)
def test_pages_say_where_files_come_from(page: Path) -> None:
    assert unexplained(page.read_text(encoding="utf-8")) == set(), "name the file in the text before, with where it comes from"
