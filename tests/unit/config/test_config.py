"""Profiles: strict, typed, and documented key by key."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from aspen_mp import config
from aspen_mp.errors import ConfigError


def folder() -> Path:
    return Path(config.__file__).parent


def test_default_toml_says_what_the_types_say() -> None:
    table = tomllib.loads((folder() / "default.toml").read_text())
    assert msgspec.convert(table, config.Profile) == config.Profile() == config.load() == config.load("default")
    assert table == msgspec.json.decode(msgspec.json.encode(config.Profile())), "a key is missing in default.toml"


def test_every_key_is_explained() -> None:
    lines = (folder() / "default.toml").read_text().splitlines()
    for before, line in pairwise(lines):
        if "=" in line and not line.startswith("#"):
            assert before.startswith("#"), f"no explanation of {line}"


@pytest.mark.parametrize("name", config.names())
def test_shipped_profiles_load(name: str) -> None:
    assert isinstance(config.load(name), config.Profile)


def test_names() -> None:
    assert config.names() == ["container", "default", "hybrid"]
    assert config.load("container").models.instances == 1
    assert config.load(config.load("hybrid")).workers.classes == ("performance", "efficiency")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[workers]\ncount = 0", r"workers\.count"),
        ("[workers]\ncount = 'many'", r"workers\.count"),
        ("[workers]\ncuont = 2", "cuont"),
        ("[wrokers]", "wrokers"),
        ("[workers]\ncores = []", r"workers\.cores"),
        ("[workers]\nstealing = false", "stealing"),
        ("[workers]\norder = 'lifo'", "order"),
        ("stealing = false", "stealing"),
        ("[workers]\nclasses = ['fast']", r"workers\.classes"),
        ("[models]\ninstances = 1.5", r"models\.instances"),
        ("nonsense", "mine.toml"),
        ("workers = 3", "workers"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(path)
    assert str(path) in str(caught.value)


def test_no_such_profile() -> None:
    with pytest.raises(ConfigError, match="container, default, hybrid"):
        config.load("nosuch")
