"""Hugging Face Accelerate: its own loaders, its own backward, metrics of all workers."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(3)
    x = torch.randn(600, 16)
    y = (x @ torch.randn(16, 4)).argmax(1)
    train, test = TensorDataset(x[:500], y[:500]), TensorDataset(x[500:], y[500:])

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, DataLoader(train, batch_size=10, shuffle=True), DataLoader(test, batch_size=24), scheduler
    )

    for epoch in range(3):
        model.train()
        for inputs, labels in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

        model.eval()
        losses = []
        for inputs, labels in test_loader:
            with torch.no_grad():
                each = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
            losses.append(accelerator.gather_for_metrics(each))
        losses = torch.cat(losses)
        assert len(losses) == len(test)
        accelerator.print(f"epoch {epoch} loss {losses.mean().item():.6f}")

    accelerator.wait_for_everyone()
    accelerator.save_model(accelerator.unwrap_model(model), "saved")
    accelerator.print("kept:", *accelerator.unwrap_model(model).state_dict())
    accelerator.end_training()


if __name__ == "__main__":
    main()
