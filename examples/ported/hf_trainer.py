"""Hugging Face's Trainer on Shoal: `shoal run --workers 2 --servers 1 examples/ported/hf_trainer.py`.

Each worker has a Trainer of its own, on one process; the optimizer that it is given exchanges gradients and parameters.
Needs `pip install transformers accelerate`, which Shoal needs for its tests alone.

Lines changed for Shoal: 5.
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Subset

import shoal  # shoal

BLOCK = 32
DATA = torch.tensor(list(Path(argparse.__file__).read_bytes()[:20000]))


class Windows(torch.utils.data.Dataset):
    def __len__(self):
        return (len(DATA) - BLOCK) // BLOCK

    def __getitem__(self, number):
        window = DATA[number * BLOCK : (number + 1) * BLOCK]
        return {"input_ids": window, "labels": window}


def train(steps=12):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"n_positions": BLOCK, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    model, dataset = GPT2LMHeadModel(GPT2Config(vocab_size=256, **sizes, **ids)), Windows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    context = shoal.init()  # shoal
    optimizer = shoal.Optimizer(optimizer, "sync", module=model)  # shoal
    rows = range(context.rank, len(dataset), context.world_size)  # shoal
    dataset = Subset(dataset, rows)  # shoal
    args = TrainingArguments(
        output_dir="trained",
        max_steps=steps,
        per_device_train_batch_size=8,
        max_grad_norm=0.0,  # or it clips each worker's gradient, before they are averaged
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=dataset, optimizers=(optimizer, None))
    trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


if __name__ == "__main__":
    for step, loss in enumerate(train()):
        print(f"step {step}: loss {loss:.4f}")
