"""`LLM()` without a server: generates a few batches and prints its own `vllm:iteration_tokens_total` as text.

    python offline.py MODEL METRICS_FILE READY_FILE

Waits for READY_FILE before the last batch ends the process, so that the other side can be read while the engine lives.
"""

import os
import random
import sys
import time


def main() -> None:
    from prometheus_client import REGISTRY, generate_latest
    from vllm import LLM, SamplingParams

    model, metrics, ready = sys.argv[1:]
    llm = LLM(
        model=model,
        served_model_name="tiny",
        load_format="dummy",
        enforce_eager=True,
        dtype="float32",
        disable_log_stats=False,
    )
    draw = random.Random(7)
    words = lambda length: [draw.randrange(3, 512) for _ in range(length)]
    for lengths, n in (([1, 5, 16, 40, 129, 300], 1), ([2000, 2048, 9000, 20000], 1), ([60, 61], 3)):
        prompts = [{"prompt_token_ids": words(length)} for length in lengths]
        llm.generate(prompts, SamplingParams(max_tokens=17, ignore_eos=True, n=n), use_tqdm=False)
    shared = words(1000)
    for _ in range(3):
        llm.generate([{"prompt_token_ids": shared}], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    with open(metrics + ".part", "wb") as out:
        out.write(generate_latest(REGISTRY))
    os.rename(metrics + ".part", metrics)
    while not os.path.exists(ready):
        time.sleep(0.1)


if __name__ == "__main__":
    main()
