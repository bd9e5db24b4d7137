"""A LightningModule under strategy="ddp", with automatic and with manual optimization."""

import logging

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, manual):
        super().__init__()
        self.automatic_optimization = not manual
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            loss = self.trainer.callback_metrics["val_loss"]
            self.print(f"epoch {self.current_epoch} loss {loss.item():.6f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(manual):
    L.seed_everything(3, verbose=False)
    x = torch.randn(600, 16)
    y = (x @ torch.randn(16, 4)).argmax(1)
    train, test = TensorDataset(x[:480], y[:480]), TensorDataset(x[480:], y[480:])

    trainer = L.Trainer(
        strategy="ddp",
        devices=2,
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=None if manual else 5.0,
        accumulate_grad_batches=1 if manual else 2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(manual)
    trainer.fit(model, DataLoader(train, batch_size=12, shuffle=True), DataLoader(test, batch_size=30))
    model.print(f"{'manual' if manual else 'automatic'} optimization on {trainer.world_size} workers")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train(manual=False)
    train(manual=True)
