"""Validates rendered Kubernetes objects without a cluster: standard kinds against the API's own schemas, custom ones
against test/schemas/, and every pod that has steptap against what makes it work.

    validate.py FILE...     files of rendered YAML; prints what is wrong and exits 1
"""

import copy
import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

SCHEMAS = pathlib.Path(__file__).resolve().parents[1] / "schemas"
CUSTOM = {"PodMonitor", "PrometheusRule", "LeaderWorkerSet"}
# 1.29 is the first release in which native sidecars are on; 1.33 the one in which they are stable.
VERSIONS = ["1.29", "1.33"]
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def pod_templates(obj):
    """(where, template) of every pod template in an object."""
    spec = obj.get("spec", {})
    if obj["kind"] in ("Deployment", "StatefulSet"):
        yield "template", spec["template"]
    if obj["kind"] == "LeaderWorkerSet":
        for name in ("leaderTemplate", "workerTemplate"):
            if name in spec["leaderWorkerTemplate"]:
                yield name, spec["leaderWorkerTemplate"][name]


def schema_errors(obj):
    if obj["kind"] in CUSTOM:
        schema = json.loads((SCHEMAS / f"{obj['kind'].lower()}.json").read_text())
        for error in jsonschema.Draft7Validator(schema).iter_errors(obj):
            yield f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        if obj["kind"] == "LeaderWorkerSet":
            for where, template in pod_templates(obj):
                metadata = {"name": "p", **copy.deepcopy(template.get("metadata") or {})}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
                yield from (f"{where}: {error}" for error in schema_errors(pod))
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(obj, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {'/'.join(map(str, error.path))}: {error.message}"


def mount_of(container, volume):
    return next((m["mountPath"] for m in container.get("volumeMounts") or [] if m["name"] == volume), None)


def variable_of(container, name):
    return next((e.get("value") for e in container.get("env") or [] if e["name"] == name), None)


def duplicates(items, key):
    names = [item[key] for item in items or []]
    return sorted({name for name in names if names.count(name) > 1})


def sidecar_errors(template):
    """What the schemas cannot say about a pod that has steptap."""
    spec = template["spec"]
    steptap = next((c for c in spec.get("initContainers") or [] if c["name"] == "steptap"), None)
    if steptap is None:
        return
    if steptap.get("restartPolicy") != "Always":
        yield "steptap is no native sidecar: restartPolicy is not Always"
    if template.get("metadata", {}).get("labels", {}).get("steptap/sidecar") != "true":
        yield "the pod lacks the label that the PodMonitor selects by"

    directory = variable_of(steptap, "STEPTAP_IPC_DIR")
    vllm = [c for c in spec["containers"] if variable_of(c, "VLLM_RPC_BASE_PATH") is not None]
    if not vllm:
        yield "no container has VLLM_RPC_BASE_PATH"
    for container in vllm:
        if variable_of(container, "VLLM_RPC_BASE_PATH") != directory:
            yield f"VLLM_RPC_BASE_PATH of {container['name']} is not steptap's directory"
        if mount_of(container, "steptap-sockets") != directory or mount_of(steptap, "steptap-sockets") != directory:
            yield f"{container['name']} and steptap do not mount the socket volume at {directory}"
    if len(f"{directory}/{'x' * 36}.up") > 107:
        yield f"{directory} is too long for a socket's path"

    names = {p["name"]: p["containerPort"] for p in steptap["ports"]}
    for probe, path in (("startupProbe", "/startupz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        get = steptap.get(probe, {}).get("httpGet", {})
        if get.get("path") != path or get.get("port") not in names:
            yield f"{probe} does not ask {path} on a port of the container"
    liveness = steptap.get("livenessProbe", {})
    if liveness.get("timeoutSeconds", 1) < 5 or liveness.get("failureThreshold", 3) < 3:
        yield "the liveness probe is too impatient: a kill cuts vLLM's path"

    # A variable may only use those that stand before it.
    known = []
    for variable in steptap["env"]:
        for used in [part.split(")")[0] for part in variable.get("value", "").split("$(")[1:]]:
            if used not in known:
                yield f"{variable['name']} uses {used} before it is set"
        known.append(variable["name"])

    context = steptap.get("securityContext", {})
    hardened = (
        context.get("allowPrivilegeEscalation") is False
        and context.get("readOnlyRootFilesystem") is True
        and context.get("capabilities", {}).get("drop") == ["ALL"]
        and context.get("seccompProfile", {}).get("type") == "RuntimeDefault"
    )
    if not hardened:
        yield "steptap's security context is not hardened"
    pod = spec.get("securityContext") or {}
    for container in vllm:
        own = container.get("securityContext") or {}
        if context.get("runAsUser", pod.get("runAsUser", 0)) != own.get("runAsUser", pod.get("runAsUser", 0)):
            yield f"steptap and {container['name']} run as different users"
    if (context.get("runAsNonRoot") or pod.get("runAsNonRoot")) and not context.get("runAsUser", pod.get("runAsUser")):
        yield "runAsNonRoot without a user other than root"
    if TOKEN_PATH not in [m["mountPath"] for m in steptap["volumeMounts"]]:
        yield "steptap would get the pod's API token"
    if "memory" not in steptap["resources"]["limits"] or "cpu" in steptap["resources"]["limits"]:
        yield "steptap needs a memory limit and no CPU limit"

    for container in spec["containers"] + spec["initContainers"]:
        for field, key in (("env", "name"), ("volumeMounts", "mountPath")):
            for name in duplicates(container.get(field), key):
                yield f"{container['name']} has {field} {name} twice"
    volumes = {v["name"] for v in spec.get("volumes") or []}
    for container in spec["containers"] + spec["initContainers"]:
        for mount in container.get("volumeMounts") or []:
            if mount["name"] not in volumes:
                yield f"{container['name']} mounts {mount['name']}, which is no volume"
        for port in container.get("ports") or []:
            if len(port.get("name", "")) > 15:
                yield f"port name {port['name']} is longer than 15 characters"


def main(files):
    wrong, objects, sidecars = 0, 0, 0
    for file in files:
        with_steptap = 0
        for obj in yaml.safe_load_all(pathlib.Path(file).read_text()):
            if obj is None:
                continue
            objects += 1
            errors = list(schema_errors(obj))
            for where, template in pod_templates(obj):
                errors += [f"{where}: {error}" for error in sidecar_errors(template)]
                with_steptap += any(c["name"] == "steptap" for c in template["spec"].get("initContainers") or [])
            for error in errors:
                wrong += 1
                print(f"{file}: {obj['kind']} {obj['metadata']['name']}: {error}", file=sys.stderr)
        sidecars += with_steptap
    print(f"{objects} objects in {len(files)} renderings, {sidecars} pods with steptap, {wrong} errors")
    return 1 if wrong or not objects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
