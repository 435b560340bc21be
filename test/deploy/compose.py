"""Checks a compose file against the Compose specification's own types, and that what it mounts and builds exists.

    compose.py FILE
"""

import pathlib
import sys

import yaml
from compose_spec import ComposeSpecification

file = pathlib.Path(sys.argv[1])
source = yaml.safe_load(file.read_text())
problems = []

compose = ComposeSpecification.model_validate(source)
for name, service in compose.services.items():
    known = {field.alias or key for key, field in type(service).model_fields.items()} | set(type(service).model_fields)
    problems += [f"{name}: unknown key {key}" for key in source["services"][name] if key not in known]
    for volume in source["services"][name].get("volumes", []):
        host = volume.split(":")[0]
        if host.startswith(".") and not (file.parent / host).exists():
            problems.append(f"{name}: {host} does not exist")
        elif not host.startswith(".") and host not in source.get("volumes", {}):
            problems.append(f"{name}: no volume {host}")
    build = source["services"][name].get("build")
    if build and not (file.parent / build["context"] / build["dockerfile"]).exists():
        problems.append(f"{name}: no {build['dockerfile']}")
    for other in source["services"][name].get("depends_on", {}):
        if other not in source["services"]:
            problems.append(f"{name} depends on {other}, which is no service")

if problems:
    sys.exit("\n".join(problems))
