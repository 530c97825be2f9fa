"""Published figures, as they stand in the papers and artifacts that are named."""

from typing import NamedTuple


class PublishedRow(NamedTuple):
    """Throughput in samples per second, with a failure every six hours, hour and ten minutes."""

    model: str
    system: str
    throughput: tuple[float, float, float]


RATES = ("6h", "1h", "10m")

TABLE_2 = (
    PublishedRow("BERT-large", "Bamboo", (77.04, 75.60, 69.84)),
    PublishedRow("GPT-2", "Bamboo", (17.47, 17.13, 16.01)),
    PublishedRow("BERT-large", "Varuna", (259.57, 245.39, 168.15)),
    PublishedRow("GPT-2", "Varuna", (86.42, 83.94, 69.67)),
    PublishedRow("GPT-3 350M", "Varuna", (29.52, 27.61, 20.71)),
    PublishedRow("GPT-3 2.7B", "Varuna", (7.27, 6.41, 0.36)),
    PublishedRow("GPT-3 6.7B", "Varuna", (4.02, 2.91, 0.12)),
    PublishedRow("BERT-large", "Oobleck", (287.10, 286.28, 282.11)),
    PublishedRow("GPT-2", "Oobleck", (85.59, 85.42, 84.80)),
    PublishedRow("GPT-3 350M", "Oobleck", (29.30, 29.21, 28.70)),
    PublishedRow("GPT-3 2.7B", "Oobleck", (7.29, 7.23, 6.89)),
    PublishedRow("GPT-3 6.7B", "Oobleck", (4.33, 4.22, 3.55)),
)
"""Oobleck (SOSP'23), Table 2; Bamboo ran out of memory with the other models."""

OUT_OF_MEMORY = ("GPT-3 350M", "GPT-3 2.7B", "GPT-3 6.7B")
"""Models that Bamboo has no throughput for: in Table 2, and in the inputs of the artifact."""

VARUNA_OF_ARTIFACT = {
    "BERT-large": (260.1128, 246.0310, 173.5206),
    "GPT-2": (86.5119, 85.1707, 76.3940),
    "GPT-3 350M": (29.5039, 28.4929, 20.1894),
    "GPT-3 2.7B": (7.2704, 6.5361, 1.7568),
    "GPT-3 6.7B": (4.1450, 2.6885, 0.2551),
}
"""What the artifact's own simulator prints for Varuna, to four digits: it differs from the paper."""

SHARES = {
    "Bamboo": {
        "effective": 0.1498,
        "redundant": 0.6101,
        "reconfiguring": 0.0898,
        "restarting": 0.0030,
        "redone": 0.1474,
    },
    "Varuna": {"effective": 0.5445, "checkpoint": 0.0404, "restarting": 0.0670, "redone": 0.3481},
    "Oobleck": {"effective": 0.9552, "reconfiguring": 0.0031, "redone": 0.0417},
}
"""Where time goes for BERT with a failure every ten minutes: README of tools/simulator in Oobleck's artifact."""

GEMINI_SURVIVAL = {(16, 2): 0.933, (16, 3): 0.800}
"""Gemini (SOSP'23): machines, failures at once, and the probability that two copies in groups survive them."""

GEMINI_COMPUTED = {(128, 2): 0.992, (1000, 2): 0.999}
"""The same from Gemini's formula, for more machines."""

GEMINI_EFFECTIVE = 0.91
"""Gemini: share of effective time with 1000 machines of which 1.5% fail a day."""

RECYCLE_RETENTION, RECYCLE_SCALED = 0.952, 0.905
"""ReCycle (SOSP'24): share of fault-free throughput on average over its trace, and that of live GPUs."""
