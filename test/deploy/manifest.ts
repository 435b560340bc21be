import { execFileSync } from 'node:child_process';
import { parseAllDocuments } from 'yaml';
import type { Probe } from './container.js';

interface Variable {
  readonly name: string;
  readonly value?: string;
}

interface RenderedProbe {
  readonly httpGet: { readonly path: string };
  readonly periodSeconds: number;
  readonly failureThreshold: number;
}

interface RenderedContainer {
  readonly name: string;
  readonly args?: readonly string[];
  readonly env?: readonly Variable[];
  readonly startupProbe: RenderedProbe;
  readonly readinessProbe: RenderedProbe;
  readonly livenessProbe: RenderedProbe;
}

interface Relabeling {
  readonly action?: string;
  readonly sourceLabels?: readonly string[];
  readonly targetLabel?: string;
  readonly regex?: string;
  readonly replacement?: string;
}

interface RenderedObject {
  readonly kind: string;
  readonly spec: {
    readonly template?: {
      readonly spec: {
        readonly initContainers: readonly RenderedContainer[];
        readonly containers: readonly RenderedContainer[];
      };
    };
    readonly podMetricsEndpoints?: readonly { readonly relabelings: readonly Relabeling[] }[];
  };
}

/** What the pod's processes need from the rendered manifests, with the volume's path and the port put in place. */
export interface Pod {
  readonly sidecar: {
    readonly args: readonly string[];
    readonly env: Readonly<Record<string, string>>;
    readonly startup: Probe;
    readonly readiness: Probe;
    readonly liveness: Probe;
  };
  /** What the component adds to vLLM's environment. */
  readonly vllm: { readonly env: Readonly<Record<string, string>> };
  /** `relabel_configs` of Prometheus, from the PodMonitor's `relabelings`. */
  readonly relabelConfigs: readonly Readonly<Record<string, unknown>>[];
}

function render(folder: string): readonly RenderedObject[] {
  const [command = 'kubectl', ...args] = (process.env['KUSTOMIZE'] ?? 'kubectl kustomize').split(' ');
  const text = execFileSync(command, [...args, folder], { encoding: 'utf8' });
  return parseAllDocuments(text).map((document) => document.toJS() as RenderedObject);
}

/** Reads deploy/kubernetes as `kubectl` renders it: the single pod and the PodMonitor. */
export function readPod(mountPath: string, metricsPort: number): Pod {
  const spec = render('deploy/kubernetes/examples/single-pod').find(
    (object) => object.kind === 'Deployment',
  )?.spec;
  const steptap = spec?.template?.spec.initContainers.find((container) => container.name === 'steptap');
  const vllm = spec?.template?.spec.containers.find((container) => container.name === 'vllm');
  const monitor = render('deploy/kubernetes/monitoring').find((object) => object.kind === 'PodMonitor')?.spec;
  if (steptap === undefined || vllm === undefined)
    throw new Error('no steptap or no vllm in the rendered pod');

  const envOf = (container: RenderedContainer): Record<string, string> =>
    Object.fromEntries(
      (container.env ?? []).map(({ name, value = '' }) => [name, value.replace('/run/steptap', mountPath)]),
    );
  const probe = ({ httpGet, periodSeconds, failureThreshold }: RenderedProbe): Probe => ({
    path: httpGet.path,
    port: metricsPort,
    periodSeconds,
    failureThreshold,
  });
  return {
    sidecar: {
      args: steptap.args ?? [],
      env: envOf(steptap),
      startup: probe(steptap.startupProbe),
      readiness: probe(steptap.readinessProbe),
      liveness: probe(steptap.livenessProbe),
    },
    vllm: { env: envOf(vllm) },
    relabelConfigs: (monitor?.podMetricsEndpoints?.[0]?.relabelings ?? []).map((relabeling) => ({
      ...(relabeling.action === undefined ? {} : { action: relabeling.action }),
      ...(relabeling.sourceLabels === undefined ? {} : { source_labels: relabeling.sourceLabels }),
      ...(relabeling.targetLabel === undefined ? {} : { target_label: relabeling.targetLabel }),
      ...(relabeling.regex === undefined ? {} : { regex: relabeling.regex }),
      ...(relabeling.replacement === undefined ? {} : { replacement: relabeling.replacement }),
    })),
  };
}
