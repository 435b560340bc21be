#!/usr/bin/env node
/** The command line: parse, build, bind, say what is bound, run, drain, exit. */
import { once } from 'node:events';
import type { Logger } from 'pino';
import { type Command, helpText, parseCommand } from '../config/cli.js';
import { describeSettings } from '../config/describe.js';
import { loadSettings } from '../config/load.js';
import { errnoOf, messageOf, SteptapError } from './errors.js';
import { createLogger } from './log.js';
import { replay } from './replay.js';
import { Sidecar } from './sidecar.js';
import { packageVersion } from './version.js';

try {
  process.exitCode = await execute(parseCommand(process.argv.slice(2)));
} catch (error) {
  process.stderr.write(`steptap: ${messageOf(error)}\n`);
  process.exitCode = error instanceof SteptapError ? error.exitCode : 1;
}

async function execute(command: Command): Promise<number> {
  switch (command.command) {
    case 'run':
      return run(command.args);
    case 'demo':
      return (await import('../test/support/demo.js')).runDemo({ keep: command.keep });
    case 'replay':
      return replayFile(command.file, command.modelName ?? 'unknown', command.json);
    case 'check-config':
      process.stdout.write(describeSettings(loadSettings(command.args, process.env)));
      return 0;
    case 'version':
      process.stdout.write(`steptap ${packageVersion()}\n`);
      return 0;
    case 'help':
      process.stdout.write(helpText(command.topic));
      return 0;
  }
}

async function run(args: readonly string[]): Promise<number> {
  const { settings } = loadSettings(args, process.env);
  const logger = createLogger(settings.log);
  const version = packageVersion();
  const stop = stopSignal();
  logger.info({ version, node: process.versions.node, pid: process.pid }, 'starting');
  keepRelaying(logger);
  const sidecar = new Sidecar({ settings, logger, version });
  const started = sidecar.start().catch((error: unknown) => {
    logger.fatal({ code: error instanceof SteptapError ? error.code : errnoOf(error) }, messageOf(error));
    throw error;
  });
  const first = await Promise.race([started, stop]);
  if (typeof first === 'string') {
    logger.info({ signal: first }, 'stopped while starting');
    return leave(sidecar);
  }
  logger.info(first, 'bound');

  const signal = await stop;
  logger.info({ signal, timeoutMs: settings.drain.timeout }, 'draining');
  const again = stopSignal();
  const cut = await Promise.race([sidecar.stop(), again]);
  logger.info(cut === undefined ? 'drained' : 'stopped at once by a second signal');
  return leave(sidecar);
}

/** Whatever is still open belongs to peers that may never end it. */
function leave(sidecar: Sidecar): never {
  sidecar.abort();
  process.exit(0);
}

async function stopSignal(): Promise<string> {
  return Promise.race(
    ['SIGTERM', 'SIGINT'].map(async (signal) => {
      await once(process, signal);
      return signal;
    }),
  );
}

/**
 * An error that nobody caught must not cut vLLM's path: a Python frontend would need a restart. It is logged as
 * loudly as can be, and the relay goes on.
 */
function keepRelaying(logger: Logger): void {
  process.on('uncaughtException', (error) => {
    logger.fatal(
      { error: error.stack, errno: errnoOf(error) },
      'internal error, please report it; still relaying',
    );
  });
}

async function replayFile(file: string, modelName: string, asJson: boolean): Promise<number> {
  const { histogram, telemetry, messages } = await replay(file, modelName);
  process.stderr.write(`${file}: ${messages} messages\n`);
  for (const { labels, value } of telemetry.samples('decode_errors_total')) {
    process.stderr.write(`${value} × could not read ${labels['kind']}: ${labels['reason']}\n`);
  }
  process.stdout.write(asJson ? `${JSON.stringify(histogram, null, 2)}\n` : await histogram.renderText());
  return 0;
}
