"""The Trainer of transformers, on a tiny model made from its configuration."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Sequences(torch.utils.data.Dataset):
    """Numbers that count up from somewhere."""

    def __init__(self, count, seed):
        self.starts = torch.randint(0, 32, (count,), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        ids = (self.starts[index] + torch.arange(12)) % 32
        return {"input_ids": ids, "labels": ids}


class Show(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if state.is_world_process_zero:
            print(f"step {state.global_step} loss {metrics['eval_loss']:.6f}", flush=True)


def main():
    set_seed(3)
    arguments = TrainingArguments(
        output_dir="trained",
        use_cpu=True,
        seed=3,
        max_steps=18,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=18,
        logging_steps=6,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        report_to=[],
        disable_tqdm=True,
    )
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sequences(256, 0),
        eval_dataset=Sequences(64, 1),
        callbacks=[Show()],
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print(f"wrapped {type(trainer.model_wrapped).__name__}", flush=True)


if __name__ == "__main__":
    main()
