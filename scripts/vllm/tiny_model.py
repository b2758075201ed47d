"""Makes a model that vLLM serves on a CPU in milliseconds, and adapters for it.

    python tiny_model.py FOLDER [ADAPTER...]

FOLDER gets a Qwen2 of two small layers without weights (serve it with --load-format dummy: they are random), a byte-level
BPE tokenizer learnt from Python's own library, and a chat template in the ChatML manner. Each ADAPTER is a folder beside it
that gets a LoRA adapter of random weights, its own for each name.
"""

import json
import pathlib
import sys
import sysconfig
import zlib

import numpy
import safetensors.numpy
import tokenizers

VOCABULARY = 4096
CONTEXT = 8192
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 64, 2, 2, 1, 32
RANK = 8
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['role'] }}\n{{ message['content'] }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)


def learn_tokenizer():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    texts = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    tokenizer.train([str(text) for text in texts], tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, START, END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    ))
    return tokenizer


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value, indent=1))


def make_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = learn_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    pad, end = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END)
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "chat_template": TEMPLATE,
        "bos_token": None, "eos_token": END, "pad_token": PAD, "clean_up_tokenization_spaces": False,
    })
    write(folder, "generation_config.json", {"eos_token_id": [end], "pad_token_id": pad})
    write(folder, "config.json", {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": LAYERS, "head_dim": HEAD,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "use_sliding_window": False,
        "bos_token_id": pad, "eos_token_id": end,
    })


def make_adapter(folder, model):
    folder.mkdir(parents=True, exist_ok=True)
    chance = numpy.random.default_rng(zlib.crc32(folder.name.encode()))

    def matrix(rows, columns):
        return (chance.standard_normal((rows, columns)) * 0.1).astype(numpy.float32)

    weights = {}
    for layer in range(LAYERS):
        for module, width in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = matrix(RANK, HIDDEN)
            weights[f"{name}.lora_B.weight"] = matrix(width, RANK)
    safetensors.numpy.save_file(weights, folder / "adapter_model.safetensors")
    write(folder, "adapter_config.json", {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(model), "inference_mode": True,
        "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj", "v_proj"],
    })


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    make_model(target)
    for adapter in sys.argv[2:]:
        make_adapter(pathlib.Path(adapter), target)
