"""Resemblyzer's speaker encoder, a recurrent net, on synthetic voices in noise."""

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
from qmaps.lab.workloads.base import Workload

PACKAGE, WEIGHTS = "resemblyzer", "pretrained.pt"
RATE, WINDOW, HOP, BANDS = 16000, 400, 160, 40
"""Samples a second, samples of a window and between windows, and bands of the mel scale."""
LOUDNESS = 10 ** (-30 / 20)
"""Root mean square of a sound, full scale being 1."""
VOWELS = np.array(
    [[300, 2300, 3000], [450, 1900, 2550], [700, 1200, 2500], [550, 900, 2500], [350, 800, 2400]]
)
"""The three formants of five vowels in Hz, of a tract of middle length."""
WIDTH = 150
"""Half the width of a formant in Hz."""
PARTIALS = 20
VALIDATION_SEED = 2**32


class SpeakerEncoder(nn.Module):
    """Spectra to embeddings of length 1, with the shapes of the published weights."""

    def __init__(self) -> None:
        super().__init__()
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))
        self.lstm = nn.LSTM(BANDS, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, spectra: Tensor) -> Tensor:
        """Embeddings (sounds, 256) of spectra (sounds, frames, bands)."""
        _, (hidden, _) = self.lstm(spectra)
        return F.normalize(F.relu(self.linear(hidden[-1])), dim=1, eps=1e-5)


def voices(speakers: int, sounds: int, frames: int, random: np.random.Generator) -> Tensor:
    """Spectra of vowels, spoken by voices that differ in pitch, tract and roughness, in noise.

    Args:
        speakers: number of voices.
        sounds: sounds of each.
        frames: frames of each sound.
        random: draws voices, vowels and noise.

    Returns:
        Mel spectra of shape (speakers, sounds, frames, bands).
    """
    shape = (speakers, sounds, 1)
    time = np.arange(frames * HOP, dtype=np.float32) / RATE
    pitch = np.exp(random.uniform(np.log(90), np.log(250), (speakers, 1, 1)))
    tract = np.exp(random.normal(scale=0.1, size=(speakers, 1, 1, 1)))
    tilt = random.uniform(0.3, 1.3, (speakers, 1, 1, 1))
    hertz = pitch * np.exp(
        random.normal(scale=0.1, size=shape) + random.normal(scale=0.5, size=shape) * time
    )
    phase = (2 * np.pi * np.cumsum(hertz, axis=-1) / RATE).astype(np.float32)
    formants = tract * VOWELS[random.integers(len(VOWELS), size=(speakers, sounds))][..., None, :]
    sound = np.zeros_like(phase)
    for partial in range(1, PARTIALS + 1):
        distances = (partial * hertz.mean(axis=-1, keepdims=True)[..., None] - formants) / WIDTH
        loudness = (1 / (1 + distances**2)).sum(axis=-1) * partial ** -tilt[..., 0]
        sound += loudness.astype(np.float32) * np.sin(partial * phase)
    sound /= np.sqrt((sound**2).mean(axis=-1, keepdims=True))
    noise = random.normal(size=sound.shape) * np.exp(random.uniform(-2, 0.5, shape))
    sound = LOUDNESS * (sound + noise) / np.sqrt(((sound + noise) ** 2).mean(-1, keepdims=True))
    waves = torch.tensor(sound.reshape(speakers * sounds, -1), dtype=torch.float32)
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(waves, WINDOW, HOP, window=window, return_complex=True)[..., :frames]
    bands = torch.einsum("mf,bft->btm", mel_bands(RATE, WINDOW, BANDS), spectrum.abs() ** 2)
    return bands.reshape(speakers, sounds, frames, BANDS)


@functools.lru_cache(maxsize=1)
def _validation(batches: int, speakers: int, sounds: int, frames: int) -> Tensor:
    random = np.random.default_rng(VALIDATION_SEED)
    return torch.stack([voices(speakers, sounds, frames, random) for _ in range(batches)])


@dataclass(frozen=True)
class Voice(Workload):
    """A recurrent net of 1.4 million parameters, trained to tell synthetic voices apart.

    Its weights are the published ones for every seed; the seed decides the voices, which are new in
    every step. The loss is the one that the net was trained with: each sound is to be more similar
    to the mean of the other sounds of its voice than to those of other voices.

    Attributes:
        speakers: voices per step.
        sounds: sounds of each.
        frames: frames of 10 ms of each sound.
        validation_batches: number of such groups of voices that `validate` averages over.

    Source: Wan et al. (2018), "Generalized end-to-end loss for speaker verification"; weights of
    the package resemblyzer (Apache 2.0).
    """

    name: ClassVar[str] = "voice"
    unit: ClassVar[str] = "nats per sound"

    steps: int = 120
    lr: float = 1e-3
    warmup_steps: int = 10
    speakers: int = 6
    sounds: int = 3
    frames: int = 24
    validation_batches: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        for parameter, least in (
            ("speakers", 2),
            ("sounds", 2),
            ("frames", 1),
            ("validation_batches", 1),
        ):
            integer(parameter, getattr(self, parameter), least)

    def build(self) -> nn.Module:
        """The net with the package's weights."""
        model = SpeakerEncoder()
        stored = torch.load(package_file(PACKAGE, WEIGHTS), weights_only=True, map_location="cpu")
        model.load_state_dict(stored["model_state"])
        return model

    def batch(self, step: int, seed: int) -> Tensor:
        """Spectra of new voices."""
        random = np.random.default_rng([seed, step])
        return voices(self.speakers, self.sounds, self.frames, random)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean over sounds of the cross-entropy of their voices, in nats."""
        return _losses(model, batch).mean()

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` and its parts in nats per sound."""
        batches = _validation(self.validation_batches, self.speakers, self.sounds, self.frames)
        return means(torch.stack([_losses(model, batch).mean() for batch in batches]))

    def data_digest(self) -> str:
        """Hash of the weights; the voices are drawn by fixed seeds."""
        return digest(package_file(PACKAGE, WEIGHTS))


def _losses(model: nn.Module, spectra: Tensor) -> Tensor:
    """Cross-entropies (speakers, sounds) of spectra (speakers, sounds, frames, bands)."""
    speakers, sounds = spectra.shape[:2]
    embedded = model(spectra.flatten(0, 1)).unflatten(0, (speakers, sounds))
    total = embedded.sum(dim=1, keepdim=True)
    others = (total - embedded) / (sounds - 1)
    similar = F.cosine_similarity(embedded[:, :, None], total[None, None, :, 0], dim=-1)
    own = torch.eye(speakers, dtype=torch.bool)[:, None].expand(-1, sounds, -1)
    similar = torch.where(own, F.cosine_similarity(embedded, others, dim=-1)[..., None], similar)
    logits = model.similarity_weight * similar + model.similarity_bias
    labels = torch.arange(speakers)[:, None].expand(-1, sounds)
    losses: Tensor = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.unflatten(0, (speakers, sounds))
