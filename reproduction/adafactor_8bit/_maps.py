"""Quantizers of second moments on the page, at today's block size."""

from __future__ import annotations

LOG, LINEAR, DYNAMIC = "logB256/log2@8u", "B256/linear0@8u", "B256/DE@8u"
"""Log space; linear with a zero, to which it truncates; what "standard 8-bit" optimizers do."""
NAMES = {
    LOG: "log space",
    LINEAR: "linear",
    DYNAMIC: "dynamic",
    "B256/linear@8u": "linear without 0",
    "B2048/DE@8u": "dynamic, blocks of 2048",
    "B256/DE-0@8u": "dynamic without 0",
}
"""As figures name them."""
OTHERS = ("B256/linear@8u", "B2048/DE@8u", "B256/DE-0@8u")
"""Without a zero, in the 8-bit paper's blocks, and this package's own 8-bit default."""
