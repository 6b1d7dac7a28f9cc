"""`aspen-mp doctor`: what the machine offers, what would be leased, what dead runtimes left behind."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from aspen_mp.cli import output
from aspen_mp.cli.output import mebibytes


@output.command
def doctor(
    clean: Annotated[bool, typer.Option("--clean", help="Remove files that dead runtimes have left behind.")] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine for better predictions. Takes about 20 seconds.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Name of a profile or a TOML file: shows which cores a runtime with it would take.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Show what this machine offers, and which cores a runtime would take.

    The exit status is 1 if something would keep a runtime from working.
    """
    from aspen_mp.tools import doctor as examination

    if calibrate:
        with output.progress("calibrating", quiet=as_json, moving=False) as update:
            examination.calibrate(profile, update)
    removed = examination.clean() if clean else None
    report = examination.examine(profile)
    if removed is not None:
        report["removed"] = removed
    if as_json:
        output.emit_json(report)
    else:
        _show(report)
    if any(finding["level"] == "problem" for finding in report["findings"]):
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    machine, memory, isa, lease = report["machine"], report["memory"], report["isa"], report["lease"]
    quota = machine["cpu_quota"]
    output.facts(
        [
            ("processor", f"{machine['cpu']} ({machine['architecture']}), {machine['system']}"),
            ("CPUs", f"{machine['online_cpus']} online; this process may use {machine['usable_cpus']}"),
            ("cores", f"{machine['physical_cores']} physical, {machine['packages']} package(s), {machine['numa_nodes']} NUMA node(s)"),
            ("CPU quota", "no limit" if quota is None else f"{quota:g} CPUs"),
            ("instruction sets", f"{', '.join(isa['supported'])}; in use: {_in_use(isa)}"),
            (
                "memory",
                f"{mebibytes(memory['available'])} of {mebibytes(memory['total'])} available; cgroup: {mebibytes(memory['cgroup_limit'])}",
            ),
            ("/dev/shm", f"{mebibytes(memory['shm_free'])} of {mebibytes(memory['shm_total'])} free"),
            ("huge pages", f"{memory['transparent_huge_pages']}; shared memory: {'yes' if memory['segment_huge_pages'] else 'none'}"),
            ("kernel offers", ", ".join(name for name, there in report["kernel"].items() if there) or "nothing needed"),
            ("packages", ", ".join(f"{name} {version or '(not installed)'}" for name, version in report["packages"].items())),
            ("plan cache", _cache(report["cache"])),
            ("calibration", _calibration(report["calibration"])),
            ("runtimes", ", ".join(report["runtimes"]["running"]) or f"none running ({', '.join(report['runtimes']['directories'])})"),
        ],
        title=f"aspen-mp {report['version']}",
    )
    output.out.print()
    rows = []
    for core in report["cores"]:
        caches = ", ".join(
            f"{name} {mebibytes(c['bytes'])}" + (f" shared by {c['shared_by']}" if c["shared_by"] > 1 else "")
            for name, c in core["caches"].items()
        )
        taken = core["cpu"] in lease["taken"]
        leased = ", ".join(["worker"] * (core["cpu"] in lease["cpus"]) + ["another runtime's"] * taken)
        rows.append([core["cpu"], core["class"], f"{core['speed']:.2f}", core["package"], core["node"], core["threads"], caches, leased])
    output.table("Cores", ["cpu", "class", "speed", "package", "node", "threads", "caches", "lease"], rows, right=(0, 2, 3, 4))
    output.out.print(f"\nA runtime would lease {output.count(lease['workers'], 'core')}: CPU {', '.join(map(str, lease['cpus']))}.")
    for what, names in report.get("removed", {}).items():
        if names:
            output.out.print(f"removed {what}: {', '.join(names)}")
    for finding in report["findings"]:
        mark = "[red]problem[/red]" if finding["level"] == "problem" else "[yellow]note[/yellow]"
        remedy = f" [dim]({escape(finding['remedy'])})[/dim]" if finding["remedy"] else ""
        output.out.print(f"{mark}: {escape(finding['text'])}{remedy}")
    if not report["findings"]:
        output.out.print("No problems found.")


def _in_use(isa: dict[str, Any]) -> str:
    more = [name for name, there in (("VNNI", isa["sums_bytes"]), ("BF16", isa["sums_pairs"]), ("AMX", isa["sums_amx"])) if there]
    return " and ".join([isa["selected"] or "none", *more])


def _cache(cache: dict[str, Any]) -> str:
    if not cache["folder"]:
        return "off"
    return f"{cache['folder']}: {output.count(cache['plans'], 'plan')}, {mebibytes(cache['bytes'])} of {mebibytes(cache['limit'])}"


def _calibration(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none: built-in figures (aspen-mp doctor --calibrate measures this machine)"
    rates, measured = found["rates"], found["measured"]
    products = rates["matrix"] / rates["factors"].get("GEMM", 1.0)
    matrix = f"{min(products, measured['peak']):.0f} GFLOP/s in matrix products of {measured['peak']:.0f} at most"
    memory = f"{rates['warm']:.0f} GB/s warm, {rates['cold']:.0f} cold ({rates['together']:.0f} on all cores)"
    beside = f"; {rates['contention'][-1][-1]:.2f} times as long beside another core that reads memory" if rates["contention"] else ""
    return f"{matrix}; {memory}{beside}; {measured['schedule_ns']:.0f} ns to schedule a tile"
