/**
 * Messages between a vLLM frontend and its engines, made by hand: the field order of each vLLM version from 0.9 on
 * (protocol.md, "Outputs"; lengths of ADD as in the captures of 0.12, 0.22 and 0.32). Knows nothing of the product
 * code, so that it cannot repeat its mistakes.
 */
import { encode } from '@msgpack/msgpack';

export const HELLO = 'HELLO';
export const READY = 'READY';
export const ADD = 0;
export const ABORT = 1;
export const UTILITY = 3;
export const FINISH_STOP = 0;
export const FINISH_LENGTH = 1;
export const FINISH_ABORT = 2;
export const ENGINE_CORE_DEAD = Buffer.from('ENGINE_CORE_DEAD');

const SINCE_0_9_0 = 'id tokens logprobs promptLogprobs finish stop events kv cached';
const SINCE_0_9_2 = 'id tokens logprobs promptLogprobs pooling finish stop events kv cached';
const SINCE_0_10_2 = 'id tokens logprobs promptLogprobs pooling finish stop events kv trace cached';
const SINCE_0_20 =
  'id tokens logprobs promptLogprobs pooling finish stop events kv trace prefill experts nans';
const SINCE_0_26 =
  'id tokens logprobs promptLogprobs pooling finish stop events kv ec trace prefill experts nans';

/** Fields of an EngineCoreOutput in wire order; each key stands for its version and those up to the next key. */
const OUTPUT_FIELDS = {
  '0.9.1': SINCE_0_9_0.split(' '),
  '0.9.2': SINCE_0_9_2.split(' '),
  '0.10.2': SINCE_0_10_2.split(' '),
  '0.12': `${SINCE_0_10_2} nans`.split(' '),
  '0.14': `${SINCE_0_10_2} experts nans`.split(' '),
  '0.17': `${SINCE_0_10_2} externalCached experts nans`.split(' '),
  '0.22': SINCE_0_20.split(' '),
  '0.26': SINCE_0_26.split(' '),
  '0.28': `${SINCE_0_26} later later`.split(' '),
  '0.30': `${SINCE_0_26} later later later`.split(' '),
  '0.32': `${SINCE_0_26} later later later later`.split(' '),
} as const;

/** A generation of message layouts, named after a vLLM version that speaks it. */
export type VllmVersion = keyof typeof OUTPUT_FIELDS;
export const VLLM_VERSIONS = Object.keys(OUTPUT_FIELDS) as VllmVersion[];
export const NEWEST: VllmVersion = '0.32';

/** Where field `name` stands in an EngineCoreOutput of that version; -1 where there is none. */
export function outputFieldIndex(version: VllmVersion, name: string): number {
  return (OUTPUT_FIELDS[version] as readonly string[]).indexOf(name);
}

function isAtLeast(version: VllmVersion, first: VllmVersion): boolean {
  return VLLM_VERSIONS.indexOf(version) >= VLLM_VERSIONS.indexOf(first);
}

export interface OutputSpec {
  readonly id: string;
  /** The new token ids, or how many of them; none without. */
  readonly tokens?: number | readonly number[];
  /** prefill_stats.num_computed_tokens. Without it the output carries no prefill stats. */
  readonly computed?: number;
  /** Cached prompt tokens: in the prefill stats from 0.20 on, before that the integer num_cached_tokens. */
  readonly cached?: number;
  readonly finish?: number | null;
  /** Any value in place of the prefill stats. */
  readonly prefill?: unknown;
}

/** One EngineCoreOutput, not yet encoded. */
export function output(spec: OutputSpec, version: VllmVersion = NEWEST): unknown[] {
  const { tokens = 0, cached = 0 } = spec;
  const values: Record<string, unknown> = {
    id: spec.id,
    tokens: typeof tokens === 'number' ? pseudoTokens(tokens) : tokens,
    finish: spec.finish ?? null,
    cached,
    externalCached: 0,
    nans: 0,
    prefill:
      spec.prefill ?? (spec.computed === undefined ? null : prefillStats(spec.computed, cached, version)),
    events: spec.computed === undefined ? null : [{ type: 1, timestamp: 6834.689358167 }],
  };
  return OUTPUT_FIELDS[version].map((field) => values[field] ?? null);
}

function prefillStats(computed: number, cached: number, version: VllmVersion): Record<string, number> {
  return {
    num_prompt_tokens: computed + cached,
    num_computed_tokens: computed,
    num_cached_tokens: cached,
    num_local_cached_tokens: cached,
    num_external_cached_tokens: 0,
    ...(isAtLeast(version, '0.28') && { num_cache_creation_tokens: 0 }),
  };
}

export interface BatchSpec {
  readonly engine?: number;
  readonly outputs?: readonly (OutputSpec | readonly unknown[])[];
  readonly finished?: readonly string[] | null;
  /** true for plausible scheduler stats, or the map itself. */
  readonly stats?: boolean | Readonly<Record<string, unknown>>;
  readonly utility?: unknown;
  /** wave_complete */
  readonly wave?: number;
  readonly startWave?: number;
  readonly version?: VllmVersion;
}

/** EngineCoreOutputs, the first frame of a message on an output socket. */
export function batch(spec: BatchSpec): Uint8Array {
  const version = spec.version ?? NEWEST;
  const outputs = (spec.outputs ?? []).map((each) => (isRow(each) ? each : output(each, version)));
  const stats = spec.stats === true ? schedulerStats(outputs.length) : spec.stats || null;
  const { engine = 0, utility = null, finished = null, wave = null, startWave = null } = spec;
  const fields = [engine, outputs, stats, performance.now() / 1000, utility, finished, wave, startWave];
  return encode(isAtLeast(version, '0.32') ? [...fields, 'default'] : fields, { useBigInt64: true });
}

function isRow(value: OutputSpec | readonly unknown[]): value is readonly unknown[] {
  return Array.isArray(value);
}

function schedulerStats(running: number): Record<string, unknown> {
  return {
    num_running_reqs: running,
    num_waiting_reqs: 0,
    step_counter: 0,
    current_wave: 0,
    kv_cache_usage: 0.00006103888176767214,
    num_skipped_waiting_reqs: 0,
    num_kv_fetch_reqs_by_stage: { waiting_to_start: 0, in_progress: 0, completed_waiting: 0 },
    iteration_details: null,
    prefix_cache_stats: {
      reset: false,
      requests: running,
      queries: 0,
      hits: 0,
      preempted_requests: 0,
      preempted_queries: 0,
      preempted_hits: 0,
      hits_by_source: {},
    },
    connector_prefix_cache_stats: null,
    kv_cache_eviction_events: [],
    spec_decoding_stats: null,
    kv_connector_stats: null,
    ec_connector_stats: null,
    waiting_lora_adapters: {},
    running_lora_adapters: {},
    cudagraph_stats: null,
    perf_stats: null,
  };
}

/** `count` token ids that a small vocabulary could have produced. */
export function pseudoTokens(count: number): number[] {
  return Array.from({ length: count }, (_, index) => (index * 37 + 11) % 300);
}

export interface AddSpec {
  readonly id: string;
  readonly promptTokens: readonly number[];
  readonly maxTokens: number;
  readonly client?: number;
  readonly version?: VllmVersion;
}

/** Frames of an ADD without auxiliary tensors: type and EngineCoreRequest. */
export function addFrames(spec: AddSpec): Uint8Array[] {
  const { id, promptTokens, client = 0, version = NEWEST } = spec;
  const sampling = {
    temperature: 1,
    top_p: 1,
    stop: [],
    ignore_eos: true,
    max_tokens: spec.maxTokens,
    _all_stop_token_ids: [1],
  };
  const arrival = Date.now() / 1000;
  const head = [id, promptTokens, null, sampling, null];
  if (!isAtLeast(version, '0.22')) {
    return [typeFrame(ADD), encode([...head, 1, arrival, null, null, null, null, client, 0, 0, null])];
  }
  const external = id.slice(0, id.lastIndexOf('-'));
  const tail = [null, null, null, null, null, client, 0, 0, null, false, external, null, null, false];
  const newest = isAtLeast(version, '0.28') ? [null, null] : [];
  return [typeFrame(ADD), encode([...head, arrival, ...tail, ...newest])];
}

export function abortFrames(ids: readonly string[]): Uint8Array[] {
  return [typeFrame(ABORT), encode(ids)];
}

/** A call of an engine's utility method; call ids of vLLM exceed 2^53. */
export function utilityFrames(client: number, callId: bigint, method: string): Uint8Array[] {
  return [typeFrame(UTILITY), encode([client, callId, method, []], { useBigInt64: true })];
}

function typeFrame(type: number): Uint8Array {
  return Uint8Array.of(type);
}

/** What an engine sends once on each request socket: nothing up to 0.19, a map since. */
export function registration(engine: number, version: VllmVersion = NEWEST): Uint8Array {
  if (!isAtLeast(version, '0.22')) return new Uint8Array(0);
  return encode({
    max_model_len: 32768,
    num_gpu_blocks: 16384,
    dp_stats_address: null,
    dtype: 'bfloat16',
    ...(isAtLeast(version, '0.26') && { vllm_version: `${version}.0`, data_parallel_rank: engine }),
    ...(isAtLeast(version, '0.32') && REGISTRATION_0_32),
  });
}

/** What vLLM 0.32 registers beside the above; the Rust frontend decodes strictly and wants all of it. */
const REGISTRATION_0_32 = {
  block_size: 128,
  world_size: 1,
  data_parallel_size: 1,
  tensor_parallel_size: 1,
  pipeline_parallel_size: 1,
  decode_context_parallel_size: 1,
  max_num_seqs: 128,
  max_num_batched_tokens: 2048,
  instance_id: '1',
  supports_lora: false,
  max_loras: 0,
  mamba_block_size: null,
  kv_cache_size_tokens: 2097152,
  kv_cache_max_concurrency: 64.5,
  kv_events_config: null,
  weight_transfer_backend: null,
  enable_sleep_mode: false,
  supports_draft_weight_updates: false,
  effective_attention_block_size: 128,
} as const;

/** The engine's identity on its DEALER sockets: its index, two bytes, little-endian. */
export function engineIdentity(engine: number): Buffer {
  return Buffer.of(engine & 0xff, engine >> 8);
}

/** Messages that no vLLM means to send, as in T21: each a list of frames. */
export const GARBAGE: readonly (readonly Uint8Array[])[] = [
  [Uint8Array.of(0x98, 0x00, 0x91)],
  [new Uint8Array(0)],
  [Uint8Array.of(0xc1)],
  [Uint8Array.of(0xdc, 0xff, 0xff)],
];
