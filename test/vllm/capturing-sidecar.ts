/** `steptap run` that also writes what passes to a file: node capturing-sidecar.js FILE [flags of steptap run]. */
import { once } from 'node:events';
import { loadSettings } from '../../config/load.js';
import { captureTo } from '../../proxy/capture.js';
import { createLogger } from '../../proxy/log.js';
import { Sidecar } from '../../proxy/sidecar.js';

const [file = '', ...args] = process.argv.slice(2);
const { settings } = loadSettings(args, process.env);
const logger = createLogger(settings.log);
const sidecar = new Sidecar({ settings, logger, version: 'capturing', recorder: captureTo(file) });
logger.info(await sidecar.start(), 'bound');
await once(process, 'SIGTERM');
await sidecar.stop();
sidecar.abort();
process.exit(0);
