"""The same rule, by vLLM's own decoder: reads a capture and prints `vllm:iteration_tokens_total` as text.

    python reference.py CAPTURE MODEL_NAME

Runs with the Python of the environment that holds the engine's version. Messages are decoded with that version's own
`EngineCoreOutputs`, so nothing here knows where in an array a field lies. For frontends that have no such metric, or
that count cached tokens as well.
"""

import base64
import json
import os
import sys
from collections import defaultdict

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"  # some versions log to standard output

import msgspec
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.serial_utils import MsgpackDecoder

BUCKETS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, float("inf")]
ADD, ABORT = b"\x00", b"\x01"

outputs_decoder = MsgpackDecoder(EngineCoreOutputs)


def plain(frame: bytes):
    return msgspec.msgpack.decode(frame, ext_hook=lambda code, data: None)


def computed_tokens(output, prompt_length) -> int:
    """Prompt tokens this output reports as computed. `prompt_length` is None from a request's second output on."""
    if hasattr(output, "prefill_stats"):
        stats = output.prefill_stats
        return 0 if stats is None else stats.num_computed_tokens
    if prompt_length is None:
        return 0
    return prompt_length - max(getattr(output, "num_cached_tokens", 0), 0)


def observations(capture):
    """(engine, tokens) of every batch."""
    tracked = defaultdict(dict)  # client -> request id -> prompt length until the first output, then None
    for line in capture:
        message = json.loads(line)
        client = tracked[message.get("cli")]
        frames = [base64.b64decode(frame) for frame in message["frames"]]
        if message["dir"] == "in" and frames[0] == ADD:
            request = plain(frames[1])
            client.setdefault(request[0], len(request[1] or []))
        elif message["dir"] == "in" and frames[0] == ABORT:
            for request_id in plain(frames[1]):
                client.pop(request_id, None)
        elif message["dir"] == "out" and frames[0] != b"ENGINE_CORE_DEAD":
            batch = outputs_decoder.decode(frames)
            tokens = 0
            for output in batch.outputs:
                if output.request_id not in client:
                    continue
                tokens += len(output.new_token_ids) + computed_tokens(output, client[output.request_id])
                client[output.request_id] = None
                if output.finish_reason is not None:
                    del client[output.request_id]
            if batch.outputs:
                yield batch.engine_index, tokens
            for request_id in batch.finished_requests or ():
                client.pop(request_id, None)


def main() -> None:
    path, model = sys.argv[1:]
    buckets, sums = {}, defaultdict(int)
    with open(path) as capture:
        for engine, tokens in observations(capture):
            row = buckets.setdefault(engine, [0] * len(BUCKETS))
            for i, bound in enumerate(BUCKETS):
                row[i] += tokens <= bound
            sums[engine] += tokens
    for engine, row in sorted(buckets.items()):
        labels = f'engine="{engine}",model_name="{model}"'
        for bound, value in zip(BUCKETS, row):
            le = "+Inf" if bound == float("inf") else f"{bound:.1f}"
            print(f'vllm:iteration_tokens_total_bucket{{{labels},le="{le}"}} {value}')
        print(f"vllm:iteration_tokens_total_sum{{{labels}}} {sums[engine]}")
        print(f"vllm:iteration_tokens_total_count{{{labels}}} {row[-1]}")


main()
