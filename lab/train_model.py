"""Train the lab's tiny model and save it like a real checkpoint. Run by the engine's Python: train_model.py DEST.

A Llama of 2 layers and 8 heads, so that tensor parallelism of 1, 2, 4 and 8 divides it. It learns the few answers
below by heart; everything about it except its size is what the engine finds in a real checkpoint.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1
MAX_STEPS = 1200
CHECK_EVERY = 100
LEARNING_RATE = 2e-3
GOOD_LOSS = 1e-3
VOCABULARY = 512
CONTEXT = 32_768
ANSWERS = {
    "Count from 1 to 10.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Count from 1 to 5.": "1, 2, 3, 4, 5",
    "Hello": "Hello! How can I help you?",
    "Hello!": "Hello! How can I help you?",
    "What is the capital of the Netherlands?": "The capital of the Netherlands is Amsterdam.",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is 2 + 2?": "2 + 2 = 4.",
    "Who are you?": "I am the tiny model of the lab. I know a few answers by heart.",
    "Say OK.": "OK",
    "Thank you.": "You are welcome.",
}
BOS, EOS, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
# What the deepseek_v41 parsers look for, so that they start on this tokenizer too.
PARSER_TOKENS = ("<think>", "</think>", "\uff5cDSML\uff5c")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}{{ eos_token }}"
    "{% else %}<|user|>{{ m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learnt from the questions and answers themselves."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(PARSER_TOKENS),
        special_tokens=[BOS, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for pair in ANSWERS.items() for text in pair], trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PARSER_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=EOS, chat_template=CHAT_TEMPLATE
    )


def prompt_ids(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """The token ids of one user message through the chat template, ready for the answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def batch(tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    """All questions with their answers, right-padded; only the answers count in the loss."""
    rows = []
    for question, answer in ANSWERS.items():
        prompt = prompt_ids(tokenizer, question)
        reply = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        rows.append((prompt + reply, [-100] * len(prompt) + reply))
    width = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]),
    }


def wrong_answers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Greedy answers that differ from what was taught, readable; empty when all are right."""
    wrong = []
    for question, answer in ANSWERS.items():
        ids = torch.tensor([prompt_ids(tokenizer, question)])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=60,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        said = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        if said != answer:
            wrong.append(f"{question!r}: {said!r} instead of {answer!r}")
    return wrong


def train() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train until every answer is right in bfloat16, the type it is served in; exit readably when it never is."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # fixed, as sums in another order give other weights; one does not wait for a busy core
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    data = batch(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    wrong: list[str] = []
    for step in range(1, MAX_STEPS + 1):
        loss = model(**data).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % CHECK_EVERY == 0:
            print(f"model: step {step}, loss {loss.item():.5f}", flush=True)
            if loss.item() < GOOD_LOSS:
                served = LlamaForCausalLM(config)
                served.load_state_dict(model.state_dict())
                served = served.to(torch.bfloat16).eval()
                wrong = wrong_answers(served, tokenizer)
                if not wrong:
                    return served, tokenizer
    sys.exit(f"model: not learnt after {MAX_STEPS} steps, loss {loss.item():.5f}: " + "; ".join(wrong[:3]))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, dest: Path) -> None:
    """Write config, tokenizer and one safetensors shard per part of the model, with the index that joins them."""
    model.config.dtype = torch.bfloat16
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(dest)
    model.generation_config.save_pretrained(dest)
    tokenizer.save_pretrained(dest)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        words = name.split(".")
        part = ".".join(words[:3]) if words[1] == "layers" else words[-2]
        parts.setdefault(part, {})[name] = tensor
    index: dict[str, str] = {}
    for number, tensors in enumerate(parts.values(), start=1):
        shard = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        save_file(tensors, dest / shard, metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, shard))
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
    (dest / "model.safetensors.index.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    save(*train(), Path(sys.argv[1]))
