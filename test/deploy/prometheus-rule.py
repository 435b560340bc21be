"""Wraps the plain rule files in a PrometheusRule, the object that the Prometheus operator takes.

    prometheus-rule.py [--check]     write deploy/kubernetes/monitoring/prometheusrule.yaml, or only compare
"""

import pathlib
import sys

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
SOURCES = ["recording-rules.yaml", "alerting-rules.yaml"]
TARGET = DEPLOY / "kubernetes/monitoring/prometheusrule.yaml"

HEADER = """\
# Made of ../../prometheus/{recording,alerting}-rules.yaml by test/deploy/prometheus-rule.py; edit those.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: steptap
  labels:
    app.kubernetes.io/name: steptap
spec:
  groups:
"""


def groups_of(text: str) -> str:
    """The lines under `groups:`, two columns further in."""
    lines = text.split("\n")
    body = lines[lines.index("groups:") + 1 :]
    return "\n".join("  " + line if line else line for line in body).strip("\n") + "\n"


wrapped = HEADER + "\n".join(groups_of((DEPLOY / "prometheus" / name).read_text()) for name in SOURCES)
if "--check" in sys.argv:
    if TARGET.read_text() != wrapped:
        sys.exit(f"{TARGET.name} differs from the rule files: run test/deploy/prometheus-rule.py")
else:
    TARGET.write_text(wrapped)
