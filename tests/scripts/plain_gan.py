"""A generator against a discriminator, each with an optimizer of its own."""

import math

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
points = 1000
angles = torch.linspace(0, 2 * math.pi, points)
circle = torch.stack([angles.cos(), angles.sin()], 1) + 0.02 * torch.randn(points, 2)
loader = DataLoader(TensorDataset(circle), batch_size=64, shuffle=True, drop_last=True)

netG = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
netD = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1))
optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(200, 4)

for epoch in range(6):
    for (real,) in loader:
        # The discriminator, on real and on made points.
        netD.zero_grad()
        label = torch.ones(len(real), 1)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(len(real), 4))
        errD_fake = criterion(netD(fake.detach()), torch.zeros(len(real), 1))
        errD_fake.backward()
        optimizerD.step()

        # The generator, by what the discriminator makes of its points.
        netG.zero_grad()
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()

    with torch.no_grad():
        netG.eval()
        radius = netG(fixed_noise).norm(dim=1)
        netG.train()
    print(f"epoch {epoch} radius {radius.mean():.3f} +- {radius.std():.3f}")
