"""FCPE, a convolutional net that hears pitch, on tones of stretched partials in noise."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from benchmarks.blind.workloads.mel import mel_bands
from benchmarks.blind.workloads.packages import digest, package_file
from benchmarks.blind.workloads.validation import means
from qmaps.capture.parameters import integer
from qmaps.lab.workloads.base import Batch, Workload

PACKAGE = "torchfcpe"
WEIGHTS = "assets/fcpe_c_v001.pt"
RATE, WINDOW, HOP, BANDS = 16000, 1024, 160, 128
"""Samples a second, samples of a window and between windows, and bands of the mel scale."""
LOWEST, HIGHEST = 32.7, 1975.5
"""Range of the model's pitches in Hz."""
PITCHES, WIDTH = 360, 625.0
"""Number of pitches that the model tells apart, and variance of a target around one in cents."""
VALIDATION_SEED = 2**32


class Layer(nn.Module):
    """A convolution over time, 31 frames wide, between two linear layers, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.time = nn.Conv1d(2 * width, 2 * width, 31, padding=15, groups=2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Frames (batch, frames, width) to frames of the same shape."""
        inner = F.glu(self.up(self.norm(x)), dim=-1)
        return x + self.down(F.silu(self.time(inner.transpose(1, 2)).transpose(1, 2)))


class PitchNet(nn.Module):
    """Spectra to pitches, with the shapes of FCPE's published weights."""

    def __init__(self, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv1d(BANDS, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.second = nn.Conv1d(width, width, 3, padding=1)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.last_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, PITCHES)

    def forward(self, spectra: Tensor) -> Tensor:
        """Logits (batch, frames, pitches) of spectra (batch, frames, bands)."""
        x = self.second(F.leaky_relu(self.norm(self.first(spectra.transpose(1, 2)))))
        logits: Tensor = self.head(self.last_norm(self.layers(x.transpose(1, 2))))
        return logits


def published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the package by the names of `PitchNet`."""
    renamed = {"input_stack.0": "first", "input_stack.1": "norm", "input_stack.3": "second",
               "norm": "last_norm"}  # fmt: skip
    for layer in range(6):
        inner = f"net.encoder_layers.{layer}.conformer.net"
        for place, name in (("0", "norm"), ("2", "up"), ("4.conv", "time"), ("6", "down")):
            renamed[f"{inner}.{place}"] = f"layers.{layer}.{name}"
    state = {
        f"{new}.{kind}": weights[f"{old}.{kind}"]
        for old, new in renamed.items()
        for kind in ("weight", "bias")
    }
    for layer in range(6):  # stored as convolutions over one frame
        for name in ("up", "down"):
            state[f"layers.{layer}.{name}.weight"] = state[f"layers.{layer}.{name}.weight"][..., 0]
    # The head is stored as directions and lengths of its rows.
    lengths, rows = (weights[f"output_proj.weight_{part}"] for part in "gv")
    state["head.weight"] = rows * (lengths / rows.norm(dim=1, keepdim=True))
    state["head.bias"] = weights["output_proj.bias"]
    return state


def tones(count: int, frames: int, random: np.random.Generator) -> Batch:
    """Spectra of gliding tones in noise, and their pitches.

    The partials of a tone are stretched as those of a stiff string, and the first ones may be
    absent, so the model has to learn what it has not heard.

    Args:
        count: number of tones.
        frames: frames of each.
        random: draws pitches, glides, partials and noise.

    Returns:
        Log mel spectra (count, frames, bands), and pitches in cents above 10 Hz (count, frames).
    """
    samples = frames * HOP
    time = np.arange(samples) / RATE
    start, glide = (
        random.uniform(np.log(80), np.log(800), count),
        random.normal(scale=2, size=count),
    )
    hertz = np.exp(start[:, None] + glide[:, None] * time)
    phase = 2 * np.pi * np.cumsum(hertz, axis=1) / RATE
    stiffness = random.uniform(0, 0.01, (count, 1))
    sound = np.zeros_like(phase)
    for partial in range(1, 13):
        loudness = random.lognormal(sigma=1, size=(count, 1)) / partial
        heard = random.random((count, 1)) < (0.5 if partial < 3 else 1.0)
        ratio = partial * np.sqrt(1 + stiffness * partial**2)
        sound += heard * loudness * np.sin(ratio * phase) * (ratio * hertz < RATE / 2)
    sound += random.normal(size=sound.shape) * random.uniform(0.2, 1.5, (count, 1))
    sound *= 0.1
    pad = (WINDOW - HOP) // 2
    padded = F.pad(torch.tensor(sound, dtype=torch.float32)[:, None], (pad, pad), mode="reflect")
    spectrum = torch.stft(
        padded[:, 0], WINDOW, HOP, window=torch.hann_window(WINDOW), center=False,
        return_complex=True,
    )  # fmt: skip
    bands = torch.einsum(
        "mf,bft->btm", mel_bands(RATE, WINDOW, BANDS), (spectrum.abs() ** 2 + 1e-9).sqrt()
    )
    pitches = 1200 * np.log2(hertz[:, HOP // 2 :: HOP] / 10)
    return bands.clamp(min=1e-5).log(), torch.tensor(pitches, dtype=torch.float32)


@functools.lru_cache(maxsize=1)
def _validation(count: int, frames: int) -> Batch:
    return tones(count, frames, np.random.default_rng(VALIDATION_SEED))


@dataclass(frozen=True)
class Pitch(Workload):
    """A convolutional net of 10.8 million parameters, trained on tones of stretched partials.

    Its weights are the published ones for every seed; the seed decides the tones. Nothing is
    dropped out.

    Attributes:
        batch_size: tones per step.
        frames: frames of 10 ms of each.
        validation_tones: number of tones that `validate` averages over.

    Source: Luo et al. (2025), "FCPE: a fast context-based pitch estimation model"; weights of the
    package torchfcpe (MIT).
    """

    name: ClassVar[str] = "pitch"
    unit: ClassVar[str] = "nats per frame"

    steps: int = 120
    lr: float = 3e-4
    warmup_steps: int = 10
    batch_size: int = 4
    frames: int = 16
    validation_tones: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        for parameter in ("batch_size", "frames", "validation_tones"):
            integer(parameter, getattr(self, parameter), 1)

    def build(self) -> nn.Module:
        """The net with the package's weights."""
        model = PitchNet()
        stored = torch.load(package_file(PACKAGE, WEIGHTS), weights_only=True, map_location="cpu")
        model.load_state_dict(published(stored["model"]))
        return model

    def batch(self, step: int, seed: int) -> Batch:
        """New tones and their pitches."""
        return tones(self.batch_size, self.frames, np.random.default_rng([seed, step]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean over frames of the cross-entropy with a narrow bell around the pitch, in nats."""
        return self._losses(model, batch).mean()

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` and its parts in nats per frame."""
        spectra, pitches = _validation(self.validation_tones, self.frames)
        parts = zip(spectra.split(32), pitches.split(32), strict=True)
        return means(torch.cat([self._losses(model, part).mean(dim=1) for part in parts]))

    def data_digest(self) -> str:
        """Hash of the weights; the tones are drawn by fixed seeds."""
        return digest(package_file(PACKAGE, WEIGHTS))

    def _losses(self, model: nn.Module, batch: Batch) -> Tensor:
        spectra, pitches = batch
        cents = torch.linspace(*(1200 * np.log2(f / 10) for f in (LOWEST, HIGHEST)), PITCHES)
        targets = torch.softmax(-((cents - pitches[..., None]) ** 2) / (2 * WIDTH), dim=-1)
        losses: Tensor = F.cross_entropy(
            model(spectra).transpose(1, 2), targets.transpose(1, 2), reduction="none"
        )
        return losses
