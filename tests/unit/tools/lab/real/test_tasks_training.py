"""Tasks that compute for real: numbers equal in every run and different on every rank, and every model learns."""

from __future__ import annotations

import math

import pytest
import torch

from undertow.errors import ConfigError
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.real.tasks import PATTERNS, WORDS, Task, draw_images, draw_sentences, make_generator, make_task

EVERY_TASK = pytest.mark.parametrize("name", REAL_NAMES)
# The cheapest task of each kind.
SORTS = pytest.mark.parametrize("name", ["googlenet-cifar", "sockeye-reversal", "gpt"])


def train(task: Task, model: torch.nn.Module, batches: list[tuple[torch.Tensor, ...]]) -> list[float]:
    """Take a plain SGD step on each batch, and return the losses before the steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_these_can_be_trained() -> None:
    assert REAL_NAMES == (
        "alexnet-cifar",
        "vgg19-cifar",
        "vgg19-22k-cifar",
        "googlenet-cifar",
        "inception-v3-cifar",
        "resnet50-cifar",
        "resnet152-cifar",
        "sockeye-reversal",
        "gpt",
    )


@EVERY_TASK
def test_every_parameter_gets_a_gradient_and_the_loss_goes_down(name: str) -> None:
    task = make_task(name, batch=2)
    model, batch = task.make_model(), task.make_batch(0, 0)
    losses = train(task, model, [batch])
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        length = parameter.grad.norm().item()
        assert 0 < length < math.inf, label
    losses += train(task, model, [batch])
    with torch.no_grad():
        losses.append(task.loss(model, batch).item())
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(("name", "batch", "steps", "choices"), [("gpt", 4, 20, 256), ("alexnet-cifar", 8, 12, 10)])
def test_it_learns_from_batches_that_it_never_saw(name: str, batch: int, steps: int, choices: int) -> None:
    task = make_task(name, batch=batch)
    losses = train(task, task.make_model(), [task.make_batch(0, step) for step in range(steps)])
    assert sum(losses[-4:]) / 4 < 0.9 * math.log(choices) < losses[0]


@SORTS
def test_every_call_makes_the_same_weights_and_leaves_chance_alone(name: str) -> None:
    task = make_task(name)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = task.make_model().state_dict()
    assert torch.equal(torch.rand(1), expected)
    second = task.make_model().state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@SORTS
def test_a_batch_depends_on_rank_and_step_alone(name: str) -> None:
    task = make_task(name, batch=4)
    first = task.make_batch(1, 2)
    task.make_batch(0, 0)
    assert all(map(torch.equal, first, task.make_batch(1, 2)))
    for other in (task.make_batch(2, 1), task.make_batch(1, 3), task.make_batch(0, 2)):
        assert not torch.equal(first[0], other[0])


@SORTS
def test_a_batch_has_as_many_samples_as_asked_for(name: str) -> None:
    assert {len(part) for part in make_task(name, batch=3).make_batch(0, 0)} == {3}
    assert make_task(name, batch=3).batch == 3
    assert make_task(name).batch == 8
    assert make_task(name).name == name


def test_no_two_ranks_and_steps_share_a_generator() -> None:
    drawn = {
        torch.rand(1, generator=make_generator(rank, step), dtype=torch.float64).item()
        for rank in range(20)
        for step in range(20)
    }
    assert len(drawn) == 400


@pytest.mark.parametrize("classes", [10, 21841])
def test_images_of_one_class_are_alike_and_of_two_classes_are_not(classes: int) -> None:
    images, labels = draw_images(make_generator(0, 0), count=64, classes=classes, pixels=32)
    assert images.shape == (64, 3, 32, 32)
    assert len(labels.unique()) == PATTERNS
    assert labels.max() < classes
    means = torch.stack([images[labels == label].mean(dim=0) for label in labels.unique()])
    apart = torch.cdist(images.flatten(1), means.flatten(1))
    assert torch.equal(labels.unique()[apart.argmin(dim=1)], labels)


def test_a_class_looks_the_same_on_every_rank() -> None:
    def mean_of_class_0(rank: int) -> torch.Tensor:
        images, labels = draw_images(make_generator(rank, 0), count=200, classes=10, pixels=8)
        return images[labels == 0].mean(dim=0)

    assert (mean_of_class_0(0) - mean_of_class_0(1)).abs().max() < 0.2


def test_a_translation_is_the_sentence_backwards() -> None:
    source, fed, target = draw_sentences(make_generator(0, 0), count=5, tokens=6)
    assert torch.equal(target.flip(1), source)
    assert torch.equal(fed[:, 1:], target[:, :-1])
    assert not fed[:, 0].any()
    assert 1 <= source.min() <= source.max() <= WORDS


def test_the_text_task_predicts_the_next_byte() -> None:
    text, following = make_task("gpt", batch=3).make_batch(0, 0)
    assert torch.equal(text[:, 1:], following[:, :-1])


def test_the_auxiliary_head_counts_for_a_third_or_so() -> None:
    task = make_task("inception-v3-cifar", batch=2)
    logits, labels = torch.zeros(2, 10), torch.tensor([0, 1])

    class Fixed(torch.nn.Module):
        def forward(self, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return logits, logits

    loss = task.loss(Fixed(), (torch.zeros(2, 3, 32, 32), labels))
    assert loss.item() == pytest.approx(1.3 * torch.log(torch.tensor(10.0)).item())


def test_an_unknown_task_is_refused_with_what_was_meant() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown task 'resnet50'; did you mean 'resnet50-cifar'\? known: alexnet-cifar, "
    ):
        make_task("resnet50")


@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_without_samples_is_refused(batch: int) -> None:
    with pytest.raises(ConfigError, match=f"a batch of {batch} is not possible"):
        make_task("gpt", batch=batch)
