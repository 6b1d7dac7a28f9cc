"""All that is made from records and their types: pages, charts, blocks of README.md and docs/index.md, schemas.

`aspen-mp bench render` writes or checks it.
"""

from __future__ import annotations

from pathlib import Path

from aspen_mp.bench.render import charts, pages, published

BEGIN, END = "<!-- bench: peers -->", "<!-- end -->"
RESULTS = Path("bench/results")
DOCS = Path("docs/benchmarks")
SCHEMAS = Path("docs/reference/schemas/bench")


def texts(root: Path) -> dict[Path, str]:
    """The content of each generated text file below the repository's root. ValueError: a record or a page is not as it should be."""
    records = published.read(root / RESULTS)
    found = {DOCS / f"{name}.md": text for name, text in pages.all_pages(records, root / RESULTS / "reasons.json").items()}
    found |= {SCHEMAS / name: text for name, text in published.schemas().items()}
    for page, make in ((Path("README.md"), pages.readme), (Path("docs/index.md"), pages.front)):
        before, begin, rest = (root / page).read_text("utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{root / page}: the lines {BEGIN} and {END} are missing")
        found[page] = f"{before}{BEGIN}\n{make(records)}\n{END}{after}"
    return found


def stale(root: Path) -> list[Path]:
    """Generated files that are missing, out of date, or belong to no record any more."""
    records = published.read(root / RESULTS)
    wanted = texts(root)
    old = [file for file, text in wanted.items() if not (root / file).exists() or (root / file).read_text("utf-8") != text]
    drawn = {DOCS / charts.name(item): item for item in records if charts.draw(item)}
    old += [file for file, item in drawn.items() if charts.stale(root / file, [item])]
    ours = (DOCS / "*.md", DOCS / "*.svg", SCHEMAS / "*.json")
    there = {file.relative_to(root) for pattern in ours for file in root.glob(str(pattern))}
    return sorted([*old, *(there - wanted.keys() - drawn.keys())])


def write(root: Path) -> list[Path]:
    """Make every stale file anew, or remove it where nothing belongs in it. Return the files that changed."""
    records = {DOCS / charts.name(item): item for item in published.read(root / RESULTS)}
    wanted, changed = texts(root), stale(root)
    for folder in (DOCS, SCHEMAS):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for file in changed:
        drawer = charts.draw(records[file]) if file in records else None
        if file in wanted:
            (root / file).write_text(wanted[file], "utf-8")
        elif drawer is not None:
            charts.write(root / file, records[file], drawer)
        else:
            (root / file).unlink()
    return changed
