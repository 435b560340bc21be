import { join } from 'node:path';
import { contradictions } from './contradictions.js';
import { directoryOfVllm, settingsFromEnvironment } from './environment.js';
import { ConfigError } from './error.js';
import { settingsFromFile } from './file.js';
import { parseArguments, SETTINGS_GRAMMAR, settingsFromFlags } from './flags.js';
import { type Given, readGiven, type Source } from './given.js';
import { isWildcard, parseEndpoint } from './network.js';
import { createConfiguration, SETTINGS, type SettingName } from './schema.js';
import type { Settings } from './settings.js';

export { ConfigError } from './error.js';

export interface Loaded {
  readonly settings: Settings;
  /** Where each effective value comes from. */
  readonly sources: Readonly<Record<SettingName, Source>>;
  /** The same in words, with the name: `flag --ipc-dir`, `environment VLLM_RPC_BASE_PATH`, `default`. */
  readonly origins: Readonly<Record<SettingName, string>>;
}

/**
 * The effective configuration: defaults, VLLM_RPC_BASE_PATH, `--config FILE`, environment, flags, later wins.
 * Every value is checked, those that a later source overrides too.
 *
 * @param argv the arguments after the command
 * @throws ConfigError with everything that is wrong
 */
export function loadSettings(argv: readonly string[], env: NodeJS.ProcessEnv): Loaded {
  const { values, problems: misused } = parseArguments(argv, SETTINGS_GRAMMAR);
  const file = values.get('--config');
  const fromFile = file === undefined ? { given: [], problems: [] } : settingsFromFile(file);
  const fromEnvironment = settingsFromEnvironment(env);
  const problems = [...misused, ...fromFile.problems, ...fromEnvironment.problems];
  const given = [
    ...directoryOfVllm(env),
    ...fromFile.given,
    ...fromEnvironment.given,
    ...settingsFromFlags(values),
  ];

  const layered = layer(given);
  problems.push(...layered.problems);
  // When nothing could be taken from the file there is no judging what is missing.
  if (fromFile.problems.length === 0 || fromFile.given.length > 0)
    problems.push(...contradictions(layered.settings, layered.wrong));
  if (problems.length > 0) throw new ConfigError(problems, 'Try steptap run --help.');
  return { settings: layered.settings, sources: layered.sources, origins: layered.origins };
}

/** Lays the given values over the defaults, weakest first. */
function layer(given: readonly Given[]) {
  const configuration = createConfiguration();
  const sources = eachSetting<Source>('default');
  const origins = eachSetting<string>('default');
  const problems: string[] = [];
  const wrong = new Set<SettingName>();
  for (const one of given) {
    const { name } = one.setting;
    const read = readGiven(one);
    if ('problem' in read) {
      problems.push(read.problem);
      wrong.add(name);
      continue;
    }
    configuration.set<string>(name, read.value);
    sources[name] = one.source;
    origins[name] = one.origin;
  }
  configuration.validate({ allowed: 'strict' });
  return { settings: derive(configuration.getProperties(), sources), sources, origins, problems, wrong };
}

function eachSetting<T>(value: T): Record<SettingName, T> {
  return Object.fromEntries(SETTINGS.map(({ name }) => [name, value])) as Record<SettingName, T>;
}

/** Fills in the defaults that depend on other settings. */
function derive(settings: Settings, sources: Readonly<Record<SettingName, Source>>): Settings {
  const { ipc, engine, state } = settings;
  const listening = engine.handshake === null ? null : parseEndpoint(engine.handshake).host;
  const ownHost = listening === null || isWildcard(listening) ? null : listening;
  const hasOwnStatePath = sources['state.path'] !== 'default';
  return {
    ...settings,
    engine: { ...engine, advertiseHost: engine.advertiseHost ?? ownHost },
    state: { path: hasOwnStatePath || ipc.dir === null ? state.path : join(ipc.dir, '.steptap.json') },
  };
}
