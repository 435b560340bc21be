import { SteptapError } from '../proxy/errors.js';

/**
 * The command line, the environment or the configuration file is wrong. `problems` holds every one that was
 * found, each a sentence of its own that names the setting, the value, what is allowed and where it came from.
 * Code STEPTAP_CONFIG, exit code 64 (EX_USAGE). Never holds the value of a sensitive setting.
 */
export class ConfigError extends SteptapError {
  readonly problems: readonly string[];

  constructor(problems: readonly string[], hint = 'Try steptap --help.') {
    const heading = problems.length === 1 ? '' : `${problems.length} problems:\n`;
    const lines = problems.map((problem) => (heading === '' ? problem : `  - ${problem}`));
    super('STEPTAP_CONFIG', `${heading}${lines.join('\n')}\n${hint}`, { exitCode: 64 });
    this.name = 'ConfigError';
    this.problems = problems;
  }
}
