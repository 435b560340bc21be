"""Checks the Grafana dashboard without a Grafana: it is what Grafana's own types (grafana-foundation-sdk) can read and
write back, panels do not overlap, and it prints its queries as a rule file for promtool, variables filled in.

    dashboard.py DASHBOARD >rules.yaml
"""

import json
import re
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

# Fields of Grafana's that its SDK has no type for.
UNTYPED = {"builtIn", "definition", "step", "textFormat", "titleFormat"}

source = json.loads(open(sys.argv[1], encoding="utf-8").read())
problems = []


def lost(before, after, path=""):
    """Fields of `before` that Grafana's types do not know."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                if value not in (None, [], {}) and key not in UNTYPED:
                    yield f"{path}/{key}"
            else:
                yield from lost(value, after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for index, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{path}/{index}")


typed = json.loads(JSONEncoder().encode(models.Dashboard.from_json(source)))
problems += [f"unknown field {path}" for path in lost(source, typed)]

panels = source["panels"]
if len({panel["id"] for panel in panels}) != len(panels):
    problems.append("two panels have the same id")
cells = {}
for panel in panels:
    pos = panel["gridPos"]
    if pos["x"] + pos["w"] > 24:
        problems.append(f"{panel['title']} is wider than the page")
    for x in range(pos["x"], pos["x"] + pos["w"]):
        for y in range(pos["y"], pos["y"] + pos["h"]):
            other = cells.setdefault((x, y), panel["title"])
            if other != panel["title"]:
                problems.append(f"{panel['title']} overlaps {other}")

variables = {variable["name"] for variable in source["templating"]["list"]}
for missing in {"datasource", "cluster", "namespace", "model", "engine"} - variables:
    problems.append(f"no variable {missing}")

rules = []
for panel in panels:
    for target in panel.get("targets", []):
        expr = target["expr"].replace("$__rate_interval", "5m")
        for name in re.findall(r"\$(\w+)", expr):
            if name not in variables:
                problems.append(f"{panel['title']} uses ${name}, which is no variable")
        for selector in re.findall(r"(?:vllm:|steptap_|process_|nodejs_)\w+\{([^}]*)\}", expr):
            if 'source="steptap"' not in selector and 'source!="steptap"' not in selector:
                problems.append(f"{panel['title']} does not choose a source")
        rules.append({"record": f"dashboard:panel{panel['id']}:{target['refId'].lower()}", "expr": re.sub(r"\$\w+", ".*", expr)})

if problems:
    print("\n".join(sorted(set(problems))), file=sys.stderr)
    sys.exit(1)
json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, sys.stdout, indent=1)
