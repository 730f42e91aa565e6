"""Measure the constants of the bound on a model and its data during a short pilot training.

Theorem 1 needs A², B², L and L(ω⁰) − L(ω*), which are not known beforehand. A pilot of a few unpruned steps measures
them at several points; the bound uses the maximum, and the report shows the spread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedgap.errors import InputError
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import Structure, Weights

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(ω (M,), inputs (S, ...), labels (S, ...)) → losses (S,), differentiable in ω."""


Spread = tuple[float, ...]
"""The values of one quantity at the points of the pilot where it was measured, in order."""


@dataclass(frozen=True)
class Pilot:
    """The constants of the bound that a pilot measured, each at several points of the training.

    ``gradient_moment`` A² = E‖∇l(ω; z)‖² over single samples z. ``parameter_moment`` B² = ‖ω‖². ``smoothness`` L, the
    largest curvature |d²L/dω²|. ``sensitivity`` ‖∇L(ω) − ∇L(ω̃)‖²/λ by pruning ratio λ, which estimates γ₂·R but is not
    a bound. ``moment_ratio`` E‖G‖²·Z·k/A² is 1 if gradients have zero mean, as the proof assumes, and larger otherwise.
    ``losses`` L(ω). ``steps`` are the numbers of the SGD steps at which all this was measured."""

    gradient_moment: Spread
    parameter_moment: Spread
    smoothness: Spread
    sensitivity: dict[float, Spread]
    moment_ratio: Spread
    losses: Spread
    steps: tuple[int, ...]

    @property
    def initial_gap(self) -> float:
        """Upper bound on L(ω⁰) − L(ω*): the initial loss, because cross-entropy is never below 0."""
        return self.losses[0]


def objective_of(module: nn.Module) -> Objective:
    """Cross-entropy of ``module`` in training mode as a function of its flat weights. The module's buffers are not
    changed."""
    layout = Layout.of(module)

    def losses(weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        module.train()
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        logits = functional_call(module, {**layout.split(weights), **buffers}, (inputs,))
        return functional.cross_entropy(logits, labels, reduction="none")

    return losses


def gradient(objective: Objective, weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """∇L(ω), shape (M,): the gradient of the mean loss over the samples."""
    weights = weights.detach().requires_grad_()
    return torch.autograd.grad(objective(weights, inputs, labels).mean(), weights)[0]


def gradient_moment(objective: Objective, weights: Tensor, inputs: Tensor, labels: Tensor) -> float:
    """(1/S)·Σ_i ‖∇l(ω; z_i)‖², the second moment of the gradients of S single samples.

    All samples go through the model in one batch, because BatchNorm needs one; then each sample's loss gets its own
    backward pass."""
    weights = weights.detach().requires_grad_()
    losses = objective(weights, inputs, labels)
    total = 0.0
    for i, loss in enumerate(losses):
        (row,) = torch.autograd.grad(loss, weights, retain_graph=i + 1 < len(losses))
        total += float(row.double().square().sum())
    return total / len(losses)


def smoothness(objective: Objective, weights: Tensor, inputs: Tensor, labels: Tensor, *, generator: torch.Generator,
               starts: int = 3, iterations: int = 50, tolerance: float = 1e-3) -> float:
    """The largest |eigenvalue| of the Hessian of the mean loss, by power iteration v ← Hv/‖Hv‖.

    Returns the largest result of several random starts. Each start ends when ‖Hv‖ changes by less than the share
    ``tolerance``."""
    weights = weights.detach().requires_grad_()
    loss = objective(weights, inputs, labels).mean()
    (first,) = torch.autograd.grad(loss, weights, create_graph=True)
    best = 0.0
    for _ in range(starts):
        direction = torch.randn(weights.shape, generator=generator).to(weights)
        value = 0.0
        for _ in range(iterations):
            direction = direction / direction.norm().clamp(min=1e-30)
            (direction,) = torch.autograd.grad(first, weights, direction, retain_graph=True)
            previous, value = value, float(direction.norm())
            if abs(value - previous) <= tolerance * value:
                break
        best = max(best, value)
    return best


def sensitivity(objective: Objective, weights: Tensor, inputs: Tensor, labels: Tensor, ratio: float,
                scores: Tensor, structure: Structure | None = None) -> float:
    """‖∇L(ω) − ∇L(ω̃)‖²/λ, where ω̃ is ω without the share λ = ``ratio`` of its least important weights.

    ``scores`` (M,) is the importance of the weights; ``structure`` says what is pruned (single weights if None)."""
    pruning = Weights(len(weights)) if structure is None else structure
    pruned = weights * (pruning.ranks(scores) < pruning.keep_count(ratio))
    difference = gradient(objective, weights, inputs, labels) - gradient(objective, pruned, inputs, labels)
    return float(difference.double().square().sum()) / ratio


def pilot(module: nn.Module, inputs: Tensor, labels: Tensor, *, rate: float, batch_size: int, clients: int, seed: int,
          steps: int = 100, points: int = 6, ratios: Sequence[float] = (0.3,), curvature_samples: int = 256,
          structure: Structure | None = None) -> Pilot:
    """Train ``steps`` SGD steps with learning ``rate`` on batches of k·Z = ``clients``·``batch_size`` samples, and
    measure the constants.

    Measures at ``points`` steps, including the first and the last, on batches drawn with ``seed``."""
    if not all(0.0 < ratio < 1.0 for ratio in ratios):
        raise InputError("pilot: pruning ratios must lie between 0 and 1, both excluded")
    layout, objective = Layout.of(module), objective_of(module)
    generator = torch.Generator().manual_seed(seed)
    weights, known = layout.weights(module), None
    visited = sorted({round(i * steps / max(1, points - 1)) for i in range(points)})
    rows: list[dict[str, float]] = []

    def draw(count: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(labels), (count,), generator=generator)
        return inputs[chosen].to(weights), labels[chosen].to(weights.device)

    for step in range(steps + 1):
        if step in visited:
            scores = (weights if known is None else weights * known).abs()
            large, union = draw(curvature_samples), draw(clients * batch_size)
            moment = gradient_moment(objective, weights, *draw(batch_size))
            mean_square = sum(float(gradient(objective, weights, *draw(clients * batch_size)).double().square().sum())
                              for _ in range(4)) / 4
            rows.append({"moment": moment, "norm": float(weights.double().square().sum()),
                         "curvature": smoothness(objective, weights, *large, generator=generator),
                         "ratio": mean_square * batch_size * clients / moment,
                         "loss": float(objective(weights, *large).mean()),
                         **{str(r): sensitivity(objective, weights, *union, r, scores, structure) for r in ratios}})
        known = gradient(objective, weights, *draw(clients * batch_size))
        weights = weights - rate * known

    def spread(name: str) -> Spread:
        return tuple(row[name] for row in rows)

    return Pilot(spread("moment"), spread("norm"), spread("curvature"), {r: spread(str(r)) for r in ratios},
                 spread("ratio"), spread("loss"), tuple(visited))
