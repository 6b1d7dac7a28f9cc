"""`/openapi.json`: it has every route, and schemathesis finds nothing that it says wrongly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import serving_tools as tools
import small_models
import text_models
from hypothesis import HealthCheck, given, settings
from starlette.applications import Starlette

from aspen_mp.serving.access.tokens import Tokens
from aspen_mp.serving.http import application
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.named import NamedMemory
from aspen_mp.serving.memory.routes import NamedRoutes
from aspen_mp.serving.openapi import document
from aspen_mp.serving.protocol.body import Budget

EXAMPLES = 1000 if os.environ.get("ASPEN_MP_TIER") == "long" else 15
DESCRIBED = document.document(repository=True, named=True, tokens=False)
OPERATIONS = [(method, path) for path, methods in DESCRIBED["paths"].items() for method in methods]
BREAKABLE = [
    (method, path)
    for method, path in OPERATIONS
    if ("{" in path or "requestBody" in DESCRIBED["paths"][path][method]) and not path.endswith("/unregister")
]
"""Those of which a request can be wrong. To forget a region that there is not is no error."""
CASES = [*(("positive", *each) for each in OPERATIONS), *(("negative", *each) for each in BREAKABLE)]


@pytest.mark.parametrize("more", [False, True])
def test_it_has_every_route(more: bool) -> None:
    named = NamedRoutes(NamedMemory("a"), object(), Limits()) if more else None  # type: ignore[arg-type]
    around: Any = application(None, Limits(), Budget(0), Tokens([]), object() if more else None, named)  # type: ignore[arg-type]
    assert isinstance(around._app._app, Starlette)
    routes = {(method.lower(), route.path) for route in around._app._app.routes for method in route.methods - {"HEAD"}}
    said = document.document(repository=more, named=more, tokens=False)["paths"]
    assert routes == {(method, path) for path, methods in said.items() for method in methods}


def test_tokens_are_described() -> None:
    said = document.document(repository=False, named=False, tokens=True)
    assert said["security"] == [{"token": []}]
    assert said["paths"]["/v2/health/live"]["get"]["security"] == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    tools.save(folder, "spare", 1, small_models.mlp("n"))
    text_models.save(folder, "encoder", text_models.encoder())
    with tools.serving(folder, folder, "--allow-repository", "--allow-named-shm", "a") as found:
        yield found


def narrowed(said: dict[str, Any]) -> dict[str, Any]:
    """The document for these models: names of others are drawn seldom enough by what breaks its rules."""
    for path, methods in said["paths"].items():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                models = ["spare"] if "/repository/" in path else ["mlp", "encoder"]
                parameter["schema"] = {"type": "string", "enum": models if parameter["name"] == "model" else ["1"]}
    said["components"]["schemas"]["EmbeddingsRequest"]["properties"]["model"]["enum"] = ["encoder"]
    return said


def asks_for_a_deadline(body: Any) -> bool:
    """Whether a request has a `timeout`, which the server may miss: as a parameter of inference, or as a key of embeddings."""
    if not isinstance(body, dict):
        return False
    parameters = body.get("parameters")
    return bool(body.get("timeout") or (isinstance(parameters, dict) and parameters.get("timeout")))


def test_only_a_timeout_is_a_deadline() -> None:
    assert asks_for_a_deadline({"inputs": [], "parameters": {"timeout": 1}})
    assert asks_for_a_deadline({"model": "encoder", "input": "a", "timeout": 7})
    for body in (None, [1], "timeout", {}, {"timeout": 0}, {"parameters": {"priority": 1}}, {"parameters": "timeout"}):
        assert not asks_for_a_deadline(body)


@pytest.mark.parametrize(
    ("mode", "method", "path"), [("positive", *each) for each in OPERATIONS] + [("negative", *each) for each in BREAKABLE]
)
def test_schemathesis_finds_nothing(server: tools.Server, mode: str, method: str, path: str) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="needs the package schemathesis")
    from schemathesis.specs.openapi import checks

    with tools.client(server.address) as client:
        said = narrowed(client.ask(document.PATH)[2])
    operation = schemathesis.openapi.from_dict(said)[path][method]
    excluded = [] if "requestBody" not in said["paths"][path][method] else [checks.positive_data_acceptance]  # a model wants more
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @given(case=strategy)
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def run(case: Any) -> None:
        answer = case.call(base_url=f"http://{server.address}", timeout=tools.WATCHDOG_S)
        late = [schemathesis.checks.not_a_server_error] if answer.status_code == 504 and asks_for_a_deadline(case.body) else []
        case.validate_response(answer, excluded_checks=excluded + late)

    run()
