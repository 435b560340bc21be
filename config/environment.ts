import type { Given, SourceReading } from './given.js';
import { didYouMean } from './nearest.js';
import { SETTINGS } from './schema.js';

const PREFIX = 'STEPTAP_';

/** vLLM's own variable for the directory of its sockets: the default of ipc.dir. */
const VLLM_DIRECTORY = 'VLLM_RPC_BASE_PATH';

/**
 * What the environment gives. An empty variable counts as not set: that is how templates and compose files write
 * "nothing". A variable with the prefix STEPTAP_ that no setting has is a problem.
 */
export function settingsFromEnvironment(env: NodeJS.ProcessEnv): SourceReading {
  const given: Given[] = [];
  const problems: string[] = [];
  for (const [name, raw] of Object.entries(env)) {
    if (!name.startsWith(PREFIX) || isServiceLink(name, env)) continue;
    const setting = SETTINGS.find((candidate) => candidate.env === name);
    if (setting === undefined) {
      const nearest = didYouMean(
        name,
        SETTINGS.map((candidate) => candidate.env),
      );
      problems.push(`unknown environment variable ${name}${nearest}`);
    } else if (raw !== undefined && raw !== '') {
      given.push({ setting, raw, source: 'environment', origin: `environment ${name}` });
    }
  }
  return { given, problems };
}

/** The socket directory that the environment tells vLLM. Weaker than the file, as a default is. */
export function directoryOfVllm(env: NodeJS.ProcessEnv): readonly Given[] {
  const raw = env[VLLM_DIRECTORY];
  const setting = SETTINGS.find(({ name }) => name === 'ipc.dir');
  if (raw === undefined || raw === '' || setting === undefined) return [];
  return [{ setting, raw, source: 'environment', origin: `environment ${VLLM_DIRECTORY}` }];
}

/**
 * Kubernetes tells each pod the services of its namespace in variables named after them: for a service `steptap`
 * STEPTAP_SERVICE_HOST, STEPTAP_PORT, STEPTAP_PORT_9464_TCP_ADDR and so on. They are nobody's settings.
 */
function isServiceLink(name: string, env: NodeJS.ProcessEnv): boolean {
  const service =
    /^(.+?)_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$/.exec(name);
  if (service?.[1] === undefined || env[`${service[1]}_SERVICE_HOST`] === undefined) return false;
  return service[2] !== 'PORT' || /^(tcp|udp|sctp):\/\//.test(env[name] ?? '');
}
