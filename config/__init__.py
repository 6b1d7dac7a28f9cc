"""Profiles: what a runtime does when its caller does not say. TOML files of this folder, or the user's own.

    profile = load("container")          # or a path; None gives the defaults
    profile.workers.count, profile.models.instances, …

`default.toml` documents every key. Files are read strictly: unknown keys, wrong types and values out of range are a `ConfigError` that
names file and key.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from aspen_mp.shm.errors import ConfigError

assert __name__ == "aspen_mp.config", "import aspen_mp.config, not config"

CoreClass = Literal["performance", "efficiency", "low-power"]
_Cpu = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Workers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``[workers]``; "auto" is explained at each key of `default.toml`."""

    count: Annotated[int, msgspec.Meta(ge=1, le=256)] | Literal["auto"] = "auto"
    cores: Annotated[list[_Cpu], msgspec.Meta(min_length=1, max_length=256)] | Literal["auto"] = "auto"
    classes: Annotated[tuple[CoreClass, ...], msgspec.Meta(min_length=1)] = ("performance", "efficiency", "low-power")
    smt: bool = False
    max: Annotated[int, msgspec.Meta(ge=1, le=256)] | Literal["auto"] = "auto"
    spin_us: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 100
    preempt_ms: Annotated[float, msgspec.Meta(ge=0.0, le=1_000.0)] = 1.0
    cancel_grace_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 1.0
    efficiency_speed: Annotated[float, msgspec.Meta(ge=0.01, le=1.0)] = 0.5
    low_power_speed: Annotated[float, msgspec.Meta(ge=0.01, le=1.0)] = 0.35


class Models(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``[models]``: defaults of `Runtime.load`."""

    instances: Annotated[int, msgspec.Meta(ge=1, le=256)] = 2
    precision: Literal["f32", "bf16"] = "f32"
    winograd: bool = True
    accuracy: Literal["strict", "default", "fast"] = "default"
    objective: Literal["latency", "throughput"] = "latency"
    replan: bool = True
    patience_s: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 120
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] | Literal["auto"] = "auto"
    plans_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] | Literal["auto"] = "auto"


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``[cache]``: plans and packed weights on disk."""

    folder: Annotated[str, msgspec.Meta(min_length=1)] = "auto"
    limit_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 4096


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole profile, every key set."""

    workers: Workers = Workers()
    models: Models = Models()
    cache: Cache = Cache()
    log: Literal["info", "warning", "off"] = "warning"


class Experiment(Profile, frozen=True, forbid_unknown_fields=True):
    """What tests and measurements may change besides; no file has these keys. Results are the same bits, later.

    `stealing`: whether a worker that has nothing to do takes work from others. `order`: what comes first of the tiles that are ready and
    equally deep in their network: "fifo", those that have waited longest; "lifo", the latest; "random": any, at any depth."""

    stealing: bool = True
    order: Literal["fifo", "lifo", "random"] = "fifo"


def cache_folder(profile: Profile) -> str:
    """Where the plan cache is: the environment variable ASPEN_MP_CACHE, else the profile's. Empty: there is none."""
    setting = os.environ.get("ASPEN_MP_CACHE") or profile.cache.folder
    if setting == "off":
        return ""
    if setting != "auto":
        return os.path.abspath(os.path.expanduser(setting))
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "aspen-mp")


def names() -> list[str]:
    """Profiles that come with the package."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.toml"))


def load(profile: str | Path | Profile | None = None) -> Profile:
    """The profile of this name ("default", "container", "hybrid") or in this file; None: the defaults. A `Profile` is returned as it is."""
    if profile is None:
        return Profile()
    if isinstance(profile, Profile):
        return profile
    path = Path(profile)
    if isinstance(profile, str) and profile in names():
        path = Path(__file__).parent / f"{profile}.toml"
    import tomllib  # the defaults need none

    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"there is no profile and no file {str(profile)!r}. Give a TOML file, or one of {', '.join(names())}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {path}: {error}") from None
    try:
        return msgspec.convert(table, Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"profile {path}: {error}") from None
