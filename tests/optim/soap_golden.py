"""Parameters after 20 steps of the SOAP authors' code with a learning rate of 0.05.

``soap.py`` of the repository nikhilvyas/SOAP at commit a1e5535 ran on the parameters of
`tests.optim.small_run` in float32 on a CPU, with torch 2.13.
"""

USUAL = [
    [-0.336745, 0.056635, 0.106285, -0.207556, 0.092032, 0.215702, -0.20697, 0.28844, 0.222919,
     -0.279196, 0.050563, 0.181085, 0.427352, -0.137626, -0.288884],
    [-0.081933, -0.212591, 0.260794, 6.7e-05, -0.054431, -0.128965, -0.196867, -0.234383, 0.096646,
     -0.044959, -0.090034, 0.215838],
    [0.038006, 0.127044, 0.105688, 0.13204],
]  # fmt: skip
"""With its default options."""

CHANGES = {
    "betas": (0.8, 0.9),
    "shampoo_beta": 0.7,
    "weight_decay": 0.0,
    "precondition_frequency": 3,
    "max_precond_dim": 4,
}
CHANGED = [
    [-0.022487, 0.057286, -0.00483, 0.025158, 0.062846, 0.073903, -0.075895, 0.324126, 0.044394,
     -0.088304, 0.03571, 0.10039, 0.060439, 0.013654, -0.03765],
    [-0.054856, -0.154529, 0.140161, 0.170731, -0.079609, -0.175134, -0.15823, -0.115412, 0.220403,
     -0.055651, -0.124023, 0.065164],
    [-0.072996, -0.00369, 0.023495, 0.015207],
]  # fmt: skip
"""With `CHANGES`; the last one leaves a side of the first two parameters without a basis."""
