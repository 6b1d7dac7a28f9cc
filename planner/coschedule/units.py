"""The core sets that a machine offers to several networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from aspen_mp.planner.coschedule.contention import Contention
from aspen_mp.planner.coschedule.problem import MOST_SETS, CoreSet, Domain
from aspen_mp.planner.cost.machine import Core, Machine
from aspen_mp.planner.cost.rates import Rates

PARTS: Final = ((1, 1), (1, 2), (3, 4), (1, 4))
"""Parts of a domain that a core set may be besides equal shares, in the order in which they are taken while there is room."""
MANY_JOBS: Final = 4
FEW_SETS: Final = 6
"""This many jobs at a time have a choice of this many sets: the choices of all jobs multiply."""


def domains(machine: Machine) -> tuple[tuple[Domain, ...], tuple[tuple[Core, ...], ...]]:
    """Return the domains of a machine and the cores of each: those of one class that share a last-level cache and a memory."""
    cores: dict[tuple[int, int, int], list[Core]] = {}
    for core in machine.cores:
        cores.setdefault((core.node, core.class_, core.cache), []).append(core)
    nodes = sorted({node for node, _, _ in cores})
    keys = sorted(cores)
    found = tuple(Domain(_name(machine, key), len(cores[key]), nodes.index(key[0])) for key in keys)
    return found, tuple(tuple(cores[key]) for key in keys)


def domain_of(machine: Machine) -> list[int]:
    """Return the number of each core's domain, in the order of the machine's cores."""
    keys = [(core.node, core.class_, core.cache) for core in machine.cores]
    order = sorted(set(keys))
    return [order.index(key) for key in keys]


def core_sets(found: tuple[Domain, ...], jobs: int) -> tuple[CoreSet, ...]:
    """Return all cores, an equal share of all for 2 … `jobs` jobs, and all, a half, three quarters and a quarter of each domain. The list
    is cut at the most sets."""
    most = FEW_SETS if jobs >= MANY_JOBS else MOST_SETS
    wanted = [tuple(domain.cores for domain in found)]
    wanted += [tuple(domain.cores // k for domain in found) for k in range(2, jobs + 1)]
    for up, down in PARTS:
        for d, domain in enumerate(found):
            n = domain.cores * up // down
            wanted.append(tuple(n if k == d else 0 for k in range(len(found))))
    distinct = [cores for cores in dict.fromkeys(wanted) if any(cores)][:most]
    return tuple(CoreSet("+".join(_part(domain, n) for domain, n in zip(found, cores, strict=True) if n), cores) for cores in distinct)


def machine_of(machine: Machine, found: tuple[tuple[Core, ...], ...], domains: tuple[Domain, ...], chosen: CoreSet) -> Machine:
    """Return the cores of a set as a machine of their own, with the memories that they use."""
    cores = [core for each, n in zip(found, chosen.cores, strict=True) for core in each[:n]]
    memories = {domain.memory for domain in domains}
    used = {domain.memory for domain, n in zip(domains, chosen.cores, strict=True) if n}
    engine = replace(machine.engine, submit=0.0, end=0.0, copied=0.0, claim=0.0, claimed=0.0, look=0.0, wake=0.0)
    return Machine(tuple(cores), machine.bytes_per_ns * len(used) / len(memories), engine)


def memories(machine: Machine, found: tuple[Domain, ...], rates: Rates) -> tuple[Contention, ...]:
    """Return how those that share each memory slow each other down. Memories have equal parts of the machine's bandwidth."""
    many = 1 + max(domain.memory for domain in found)
    return tuple([Contention.of(rates, machine.bytes_per_ns / many)] * many)


def _name(machine: Machine, key: tuple[int, int, int]) -> str:
    """Cores of the fastest class are P, of the others E; where memories or caches are several, with their number."""
    node, class_, cache = key
    classes = sorted({core.class_ for core in machine.cores})
    letter = "PEL"[min(classes.index(class_), 2)] if len(classes) > 1 else ""
    alike = Counter((core.node, core.class_) for core in {replace(core, speed=1.0) for core in machine.cores})
    several = len({core.node for core in machine.cores}) > 1
    place = f" of node {node}" if several else f" of cache {cache}" if alike[node, class_] > 1 else ""
    return f"{letter}{place}"


def _part(domain: Domain, cores: int) -> str:
    return f"{cores}{domain.name}"
