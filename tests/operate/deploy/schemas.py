"""Objects against the schemas of their makers: core objects by kubernetes-validate, others by a folder of CRDs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft7Validator

KUBERNETES = "1.34"

# a megabyte of definitions, read anew for every object otherwise
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

CRDS = "FLEETOPT_CRDS"
"""Environment variable: a folder of CustomResourceDefinitions as their projects publish them."""


def problems(document: Mapping[str, Any]) -> list[str] | None:
    """What is wrong with an object; ``None`` where no schema of it is at hand."""
    group = document["apiVersion"].rpartition("/")[0]
    if "." not in group or group in ("networking.k8s.io", "rbac.authorization.k8s.io"):
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error.message)]
        return []
    schema = crds().get((document["apiVersion"], document["kind"]))
    if schema is None:
        return None
    return [f"{'/'.join(map(str, e.path))}: {e.message[:200]}" for e in Draft7Validator(schema).iter_errors(document)]


@cache
def crds() -> Mapping[tuple[str, str], dict[str, Any]]:
    """(apiVersion, kind) -> schema, of every definition in the folder of the environment variable."""
    folder = os.environ.get(CRDS)
    if not folder:
        return {}
    assert Path(folder).is_dir(), f"{CRDS}={folder}: no such folder"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = {}
    for path in sorted(Path(folder).glob("*.y*ml")):
        for document in yaml.load_all(path.read_text(), loader):
            spec = document["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def strict(schema: Any, root: bool = True) -> Any:
    """A schema of the API server as JSON schema that refuses fields it does not name, which the server would drop."""
    if isinstance(schema, list):
        return [strict(s, False) for s in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    nested = ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "not")
    kept = {k: strict(v, False) for k, v in schema.items() if k in nested}
    kept |= {
        k: v
        for k, v in schema.items()
        if k
        in (
            "type",
            "enum",
            "required",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "pattern",
        )
    }
    if "properties" in schema:
        kept["properties"] = {k: strict(v, False) for k, v in schema["properties"].items()}
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
        if not open_ended and "additionalProperties" not in kept:
            kept["additionalProperties"] = False
    if root:
        kept["properties"] |= {"metadata": {"type": "object"}, "apiVersion": {}, "kind": {}}
    if schema.get("nullable"):
        kept["type"] = [kept["type"], "null"]
    return kept


def unconfined(spec: Mapping[str, Any]) -> list[str]:
    """What of a pod the Pod Security Standard "restricted" (v1.34) forbids, and what we ask beyond it: a root nobody writes."""
    pod = spec.get("securityContext", {})
    wrong = [f"{name}: {spec[name]}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    wrong += [f"volume {v['name']}" for v in spec.get("volumes", ()) if not {*v} - {"name"} <= kinds]
    wrong += [f"supplemental group 0: {pod}"] if 0 in pod.get("supplementalGroups", ()) else []
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        own = {**pod, **container.get("securityContext", {})}
        capabilities = own.get("capabilities", {})
        asked = {
            "runAsNonRoot": own.get("runAsNonRoot") is True,
            "runAsUser": own.get("runAsUser") != 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "privileged": not own.get("privileged"),
            "capabilities": "ALL" in capabilities.get("drop", ())
            and {*capabilities.get("add", ())} <= {"NET_BIND_SERVICE"},
            "hostPort": not any(p.get("hostPort") for p in container.get("ports", ())),
            "procMount": own.get("procMount", "Default") == "Default",
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        }
        wrong += [f"{container['name']}: {name}" for name, kept in asked.items() if not kept]
    return wrong
