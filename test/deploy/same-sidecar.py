"""The sidecar is written down three times (Kustomize merge, Kustomize operations, Helm). They must say the same.

    same-sidecar.py FILE FILE...     files of rendered YAML; compares the first pod with steptap of each
"""

import sys

import yaml


def sidecar_of(file):
    for obj in yaml.safe_load_all(open(file, encoding="utf-8")):
        spec = (obj or {}).get("spec", {})
        template = spec.get("template") or spec.get("leaderWorkerTemplate", {}).get("leaderTemplate")
        for container in ((template or {}).get("spec", {}).get("initContainers")) or []:
            if container["name"] == "steptap":
                container["env"].sort(key=lambda variable: variable["name"])
                container["ports"].sort(key=lambda port: port["name"])
                volumes = [v for v in template["spec"]["volumes"] if v["name"].startswith("steptap-")]
                return {"container": container, "volumes": volumes}
    sys.exit(f"{file}: no steptap in it")


first = sidecar_of(sys.argv[1])
for file in sys.argv[2:]:
    other = sidecar_of(file)
    for part in first:
        if first[part] != other[part]:
            sys.exit(f"{sys.argv[1]} and {file} differ in the {part}:\n{first[part]}\n{other[part]}")
