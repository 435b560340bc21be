import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { arch, cpus, release, totalmem } from 'node:os';
import {
  type CaseResult,
  type LatencyRow,
  latencyGoals,
  latencyRows,
  sidecarFacts,
  type ThroughputRow,
  throughputRows,
} from './results.js';

/** All that follows this line in RESULTS.md is written by hand and kept. */
const notesMark = '<!-- Written by hand from here on: kept by npm run bench. -->';

const throughputHead = ['case', 'hop', 'messages/s', 'MB/s', '±', '× zmq_proxy', 'goal', 'CPU µs/message'];
const latencyHead = [
  'case',
  'messages/s',
  'hop',
  'p50 µs',
  'p99 µs',
  '±',
  'added p50',
  'added p99',
  '× added p50',
  '× added p99',
  'CPU µs/message',
  'RSS MB',
];

/** The whole report as Markdown; also fit for a terminal. */
export function report(results: readonly CaseResult[], runs: number): string {
  const throughput = results.flatMap(throughputRows);
  const latency = results.flatMap(latencyRows);
  return [
    `Medians of ${runs} runs; ± is half the range of all runs, in per cent of the median. Ratios compare hops of the same round.`,
    '## Throughput, saturated',
    table(throughputHead, throughput.map(throughputCells)),
    ...(latency.length === 0 ? [] : ['## One-way latency', table(latencyHead, latency.map(latencyCells))]),
    ...sidecarSection(results),
    '## Goals missed',
    missedGoals(throughput, latency).join('\n'),
  ].join('\n\n');
}

/** Writes RESULTS.md: machine, method, the report, and the notes that stood there. */
export function writeResults(path: string, text: string): void {
  const notes = existsSync(path) ? readFileSync(path, 'utf8').split(notesMark)[1] : undefined;
  const parts = ['# Benchmark', machine(), method, text, notesMark];
  writeFileSync(path, `${parts.join('\n\n')}${notes ?? '\n'}`);
}

/** One line on the machine: nothing more than the numbers depend on. */
export function machine(): string {
  const [cpu] = cpus();
  const memory = Math.round(totalmem() / 2 ** 30);
  return `Machine: ${cpus().length} cores, ${cpu?.model ?? 'unknown CPU'} (${arch()}), ${memory} GiB, Linux ${release()}, Node ${process.version}.`;
}

const method = `Written by \`npm run bench\`. Both peers are C programs on libzmq (test/bench/peer.c), one process for the frontend and
one for all engines, so that neither end is what is measured. All hops of a case run one after the other, in another order each
round, each with fresh processes: \`none\`; \`zmq_proxy\`, libzmq's C proxy (test/bench/zmq-proxy.c), which neither decodes nor counts;
\`steptap\` with decoding on, through a socket directory (unix) or a handshake address (tcp). After each session steptap's
\`vllm:iteration_tokens_total\` is compared with what was sent, sum and count, and its error counters with zero: a session that differs
by one ends the benchmark. Messages are real ones of vLLM 0.32 (outputs of 18 fields, ids of 48 bytes, scheduler stats), with other ids and
tokens; names are \`transport/engines/outputs in a batch\`. High-water mark 1000 on every libzmq socket. Latency: CLOCK_MONOTONIC in the
batch's timestamp field, read when the receiver has the message. CPU: all threads of the hop's process.
\`scraped\`: \`/metrics\` is fetched each second, in the other hops from an idle steptap beside them, since a scrape takes CPU time from
the peers as well. steptap is started with the image's flags of Node.`;

function throughputCells(row: ThroughputRow): string[] {
  return [
    row.case,
    row.hop,
    whole(row.messagesPerSecond),
    whole(row.megabytesPerSecond),
    `${row.spread.toFixed(0)} %`,
    fixed(row.ratio, 2),
    row.goal === undefined ? '' : `≥ ${row.goal}`,
    fixed(row.cpuPerMessage, 2),
  ];
}

function latencyCells(row: LatencyRow): string[] {
  return [
    row.case,
    whole(row.rate),
    row.hop,
    fixed(row.p50, 0),
    fixed(row.p99, 0),
    `${row.spread.toFixed(0)} %`,
    fixed(row.addedP50, 0),
    fixed(row.addedP99, 0),
    fixed(row.ratioP50, 2),
    fixed(row.ratioP99, 2),
    fixed(row.cpuPerMessage, 1),
    fixed(row.peakRss, 0),
  ];
}

function sidecarSection(results: readonly CaseResult[]): string[] {
  const facts = sidecarFacts(results);
  if (facts === undefined) return [];
  const rows = [
    ['start to bound', `${facts.startMillis.toFixed(0)} ms`, '≤ 300 ms'],
    ['RSS idle', `${facts.idleRss.toFixed(0)} MB`, '≤ 80 MB'],
    ['RSS at 10,000 messages/s, highest', `${facts.rssAtTenThousand.toFixed(0)} MB`, '≤ 110 MB'],
    ['RSS saturated, highest', `${facts.peakRss.toFixed(0)} MB`, ''],
    ['loop time of a scrape, 8 engines', `${facts.scrapeMillis.toFixed(2)} ms`, '≤ 2 ms'],
    ['sessions whose counts were checked', String(facts.sessions), 'all exact'],
  ].filter((cells) => !/NaN|Infinity/.test(cells.join()));
  return ['## steptap itself', table(['what', 'measured', 'goal'], rows)];
}

function missedGoals(throughput: readonly ThroughputRow[], latency: readonly LatencyRow[]): string[] {
  const missed = [
    ...throughput
      .filter(({ ratio, goal }) => ratio !== undefined && goal !== undefined && ratio < goal)
      .map((row) => `* throughput ${row.case}: ${fixed(row.ratio, 2)}, goal ${row.goal}`),
    ...latency
      .filter(({ ratioP50 }) => ratioP50 !== undefined && ratioP50 > latencyGoals.p50)
      .map(
        (row) =>
          `* added p50 ${row.case} at ${row.rate}/s: ${fixed(row.ratioP50, 2)}, goal ${latencyGoals.p50}`,
      ),
    ...latency
      .filter(({ ratioP99 }) => ratioP99 !== undefined && ratioP99 > latencyGoals.p99)
      .map(
        (row) =>
          `* added p99 ${row.case} at ${row.rate}/s: ${fixed(row.ratioP99, 2)}, goal ${latencyGoals.p99}`,
      ),
  ];
  return missed.length === 0 ? ['None of those that were measured.'] : missed;
}

/** A Markdown table whose source lines up too. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join(' | ')} |`;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line)].join('\n');
}

function whole(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}

function fixed(value: number | undefined, digits: number): string {
  return value === undefined || Number.isNaN(value) ? '' : value.toFixed(digits);
}
