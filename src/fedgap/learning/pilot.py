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
"""One quantity at each visited point of the pilot, in order."""


@dataclass(frozen=True)
class Pilot:
    """What a pilot measured.

    ``gradient_moment`` A² = E‖∇l(ω; z)‖² over single samples z; ``parameter_moment`` B² = ‖ω‖²; ``smoothness`` L, the
    largest curvature |d²L/dω²|; ``sensitivity`` ‖∇L(ω) − ∇L(ω̃)‖²/λ by pruning ratio λ, an estimate of γ₂·R and not a
    bound; ``moment_ratio`` E‖G‖²·Z·k/A², 1 if gradients had zero mean as the proof assumes, larger where they have not;
    ``losses`` L(ω). ``initial_gap`` takes the least loss as 0, which cross-entropy cannot pass.
    """

    gradient_moment: Spread
    parameter_moment: Spread
    smoothness: Spread
    sensitivity: dict[float, Spread]
    moment_ratio: Spread
    losses: Spread
    steps: tuple[int, ...]

    @property
    def initial_gap(self) -> float:
        """L(ω⁰) − 0 ≥ L(ω⁰) − L(ω*)."""
        return self.losses[0]


def objective_of(module: nn.Module) -> Objective:
    """Cross-entropy of ``module`` in training mode, as a function of its flat weights; its buffers stay as they are."""
    layout = Layout.of(module)

    def losses(weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        module.train()
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        logits = functional_call(module, {**layout.split(weights), **buffers}, (inputs,))
        return functional.cross_entropy(logits, labels, reduction="none")

    return losses


def gradient(objective: Objective, weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """∇L(ω) of the mean loss over the samples, (M,)."""
    weights = weights.detach().requires_grad_()
    return torch.autograd.grad(objective(weights, inputs, labels).mean(), weights)[0]


def gradient_moment(objective: Objective, weights: Tensor, inputs: Tensor, labels: Tensor) -> float:
    """(1/S)·Σ_i ‖∇l(ω; z_i)‖², the second moment of single samples' gradients.

    Samples go through the model together, so that BatchNorm has a batch; each row of the Jacobian is one backward pass.
    """
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

    Several random starts, the largest result; each stops when ‖Hv‖ moves by less than ``tolerance`` of itself.
    """
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
    """‖∇L(ω) − ∇L(ω̃)‖²/λ for ω̃ = ω without the λ = ``ratio`` least important weights by ``scores`` (M,), as
    ``structure`` has it; single weights without one."""
    pruning = Weights(len(weights)) if structure is None else structure
    pruned = weights * (pruning.ranks(scores) < pruning.keep_count(ratio))
    difference = gradient(objective, weights, inputs, labels) - gradient(objective, pruned, inputs, labels)
    return float(difference.double().square().sum()) / ratio


def pilot(module: nn.Module, inputs: Tensor, labels: Tensor, *, rate: float, batch_size: int, clients: int, seed: int,
          steps: int = 100, points: int = 6, ratios: Sequence[float] = (0.3,), curvature_samples: int = 256,
          structure: Structure | None = None) -> Pilot:
    """A pilot of ``steps`` SGD steps of learning ``rate`` on batches of k·Z = ``clients``·``batch_size`` samples.

    Measures at ``points`` points, the first and the last step among them, on batches drawn with ``seed``.
    """
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
