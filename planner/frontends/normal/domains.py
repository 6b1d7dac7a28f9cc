"""Domains and their versions: one name for ONNX's own domain, operators in the domain that defines them, imports of every domain in use.

Gaps that the model leaves follow onnxruntime: a domain that is known and not imported has the newest version that is known.
"""

from __future__ import annotations

from typing import Any, Final

from onnx import ModelProto, OperatorSetIdProto, defs

from aspen_mp.planner.frontends import contrib
from aspen_mp.planner.frontends.check import all_nodes
from aspen_mp.planner.frontends.normal.walk import scopes
from aspen_mp.shm.errors import ModelInvalidError

_LONG: Final = "ai.onnx"
"""The other name of ONNX's own domain, which is the empty one."""


def rename(proto: ModelProto) -> None:
    """Calls ONNX's own domain "" and leaves one import of each domain. ModelInvalidError where two contradict each other."""
    for function in proto.functions:
        if function.domain == _LONG:
            function.domain = ""
    for nodes, imports in scopes(proto):
        for node in all_nodes(nodes):
            if node.domain == _LONG:
                node.domain = ""
        _merge(imports)


def _merge(imports: Any) -> None:
    versions: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == _LONG else entry.domain
        known = versions.setdefault(domain, entry.version)
        if known != entry.version:
            raise ModelInvalidError(
                f"the versions {known} and {entry.version} of the domain {domain or _LONG!r} are imported: operators of a model, or of one "
                "of its functions, have one version"
            )
    if len(versions) < len(imports) or any(entry.domain == _LONG for entry in imports):
        del imports[:]
        imports.extend(OperatorSetIdProto(domain=domain, version=version) for domain, version in versions.items())


def complete(proto: ModelProto) -> None:
    """Puts onnxruntime's operators into its domain, and imports the domains in use: in a function as the model does."""
    own = {function.domain for function in proto.functions}
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for k, (nodes, imports) in enumerate(scopes(proto)):
        local = {entry.domain: entry.version for entry in imports}
        default = local.get("", versions.get("", defs.onnx_opset_version()))
        contrib.place(nodes, default)
        for domain in dict.fromkeys(node.domain for node in all_nodes(nodes)):
            if domain not in local:
                version = versions.get(domain, 0) or _newest(domain, own)
                if version:
                    local[domain] = version
                    imports.append(OperatorSetIdProto(domain=domain, version=version))
        if k == 0:  # the model's own
            versions = local
    # ONNX's checker asks the model for the domains that its functions use, too.
    for function in proto.functions:
        for entry in function.opset_import:
            if entry.domain not in versions:
                versions[entry.domain] = entry.version
                proto.opset_import.append(OperatorSetIdProto(domain=entry.domain, version=entry.version))


def _newest(domain: str, own: set[str]) -> int:
    """The newest known version of a domain; 1 for onnxruntime's and those of the model's functions, 0 for one that nobody knows."""
    if domain == "":
        return defs.onnx_opset_version()
    if domain == contrib.DOMAIN or domain in own:
        return 1
    return max((schema.since_version for schema in defs.get_all_schemas_with_history() if schema.domain == domain), default=0)
