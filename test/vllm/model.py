"""Writes a tiny Llama (two layers, hidden size 64, 512 tokens) that vLLM runs with `--load-format dummy`.

    python model.py FOLDER

The tokenizer holds all 512 ids: random weights produce any of them, and older Rust frontends answer 500 to an id
that the tokenizer does not know.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 512
SPECIAL = ["<unk>", "<s>", "</s>"]


def tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in "abcdefghijklmnop" for b in "abcdefghijklmnop"]
    merges = merges[: VOCABULARY - len(SPECIAL) - len(letters)]
    words = SPECIAL + letters + [a + b for a, b in merges]
    assert len(words) == VOCABULARY
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 32768,
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "clean_up_tokenization_spaces": False,
    "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))


main()
