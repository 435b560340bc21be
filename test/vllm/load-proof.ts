/** The mixed load through steptap, part by part, each compared when it is done. */
import { stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { agree } from './agreement.js';
import { countOf, ruleFor, type Samples, scrape, seriesText, sumOf } from './comparison.js';
import { decodedByVllm, keepPart } from './decoder.js';
import type { Environment } from './environment.js';
import { type Ask, abortsOf, cachedLoad, cancelledLoad, freshLoad, send } from './load.js';
import type { Options } from './options.js';
import { startPair, stopInOrder } from './pair.js';
import { markdownRow, type Proof } from './report.js';
import type { Sidecar } from './sidecar.js';

const CACHED = 'cached prefixes';

interface Part {
  readonly name: string;
  readonly load: readonly Ask[];
}

export async function proveLoad(environment: Environment, options: Options, folder: string): Promise<Proof> {
  const rule = ruleFor(
    options.frontend,
    options.frontend === 'rust' ? options.frontendVersion : options.version,
  );
  // a frontend that counts otherwise is checked against vLLM's own decoder, which wants to see every message
  const decode = options.decoder || rule !== 'exact' || options.capture !== undefined;
  const capture = decode ? join(folder, 'capture.jsonl') : undefined;
  const pair = await startPair(environment, options, { folder, capture });
  const clients = await clientsOf(pair.sidecar);
  const urls = { ours: `${pair.sidecar.url}/metrics`, theirs: `${pair.serving.url}/metrics` };
  const problems: string[] = [];
  const verdicts: string[] = [];
  const marks = new Map<string, { begin: number; end: number }>();
  let requests = 0;
  let ours: Samples = new Map();
  try {
    for (const { name, load } of partsOf(options)) {
      const begin = await sizeOf(capture);
      const answers = await send(pair.serving.url, load);
      requests += answers.length;
      for (const { ok, problem } of answers) if (!ok) problems.push(`${name}: a request failed: ${problem}`);
      const agreement = await agree(rule, urls, abortsOf(load));
      marks.set(name, { begin, end: await sizeOf(capture) });
      ours = agreement.ours;
      problems.push(...agreement.problems.map((problem) => `${name}: ${problem}`));
      verdicts.push(agreement.verdict);
      process.stdout.write(`${name}: ${answers.length} requests, ${agreement.verdict}\n`);
    }
    await writeFile(join(folder, 'frontend.metrics.txt'), seriesText(await scrape(urls.theirs)));
    await writeFile(join(folder, 'steptap.metrics.txt'), seriesText(ours));
  } finally {
    problems.push(...(await stopInOrder(pair)));
  }
  const decoder = await decodedByVllm(environment, options, { capture, ours, folder });
  problems.push(...decoder.problems);
  verdicts.push(decoder.verdict);
  if (options.capture !== undefined && capture !== undefined)
    await keepPart(environment, options, { capture, marks, part: CACHED, target: options.capture });
  const counts = { clients, requests, count: countOf(ours), sum: sumOf(ours) };
  return { row: markdownRow({ layout: options, offline: false, ...counts, parts: verdicts }), problems };
}

async function clientsOf(sidecar: Sidecar): Promise<number> {
  const { text } = await sidecar.probe('/status');
  return (JSON.parse(text) as { clients: unknown[] }).clients.length;
}

async function sizeOf(file: string | undefined): Promise<number> {
  return file === undefined ? 0 : (await stat(file)).size;
}

function partsOf({ frontend }: Options): Part[] {
  const several = frontend === 'python'; // the Rust frontend takes n=1 only
  return [
    { name: 'nothing cached', load: freshLoad() },
    { name: CACHED, load: cachedLoad({ several }) },
    { name: 'cancelled', load: cancelledLoad() },
  ];
}
