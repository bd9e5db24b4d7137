"""What was predicted and what happened; and what the same model would do on other links.

In: a trace's plan with what it was made of (or a guess of that), what was measured.  Out: figures, none of which is
given where the prediction of the run itself is too far off to be believed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from undertow.plan.cluster import PAYLOAD_SHARE, Cluster
from undertow.plan.predict import predict
from undertow.plan.profile import Profile
from undertow.plan.scheme import Scheme

# Within this of the best, everything is hidden that can be.
HIDDEN = 1.02
# A prediction of what was measured that is further off says nothing about what was not.
BELIEVABLE = 0.25
SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S = 1e8, 8e11
# Where the answer is known to this factor it is known well enough.
PRECISION = 1.03


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The plan's figures beside the measured ones (medians)."""

    predicted_step_s: float
    measured_step_s: float
    predicted_compute_s: float
    measured_compute_s: float

    @property
    def step_error(self) -> float:
        """Of the prediction: 0.1 is ten per cent too long."""
        return self.predicted_step_s / self.measured_step_s - 1

    @property
    def compute_error(self) -> float:
        return self.predicted_compute_s / self.measured_compute_s - 1


class Forecaster:
    """Asks `plan.predict` about links that are not there.  Schemes stay as they are."""

    def __init__(
        self, profile: Profile, cluster: Cluster, schemes: Mapping[str, Scheme], *, measured_s: float, has_gates: bool
    ) -> None:
        names = {tensor.name for tensor in profile.tensors}
        self._profile = profile
        self._cluster = cluster
        self._schemes = {name: schemes.get(name, Scheme.DENSE) for name in names}
        self._measured_s = measured_s
        self._has_gates = has_gates

    @property
    def compute_s(self) -> float:
        return self._profile.compute_s

    @property
    def error(self) -> float:
        """Of the prediction of this very run."""
        return self.predict_s() / self._measured_s - 1

    @property
    def is_believable(self) -> bool:
        return abs(self.error) <= BELIEVABLE

    @property
    def bits_per_s(self) -> float:
        """Of the link as it is sold, headers included."""
        return self._cluster.bytes_per_s / PAYLOAD_SHARE * 8

    def predict_s(self, *, bits_per_s: float | None = None, has_gates: bool | None = None) -> float:
        """A step on a link of this bandwidth; on the one that is there by default."""
        cluster = self._cluster if bits_per_s is None else self._change(bits_per_s)
        gates = self._has_gates if has_gates is None else has_gates
        return predict(self._profile, cluster, self._schemes, has_gates=gates).step_s

    @property
    def floor_s(self) -> float:
        """A step on the fastest link: compute, and what no bandwidth shortens (latency, sums, products)."""
        return max(self.compute_s, self.predict_s(bits_per_s=FASTEST_BITS_PER_S))

    def find_bandwidth(self) -> float:
        """The least at which everything is hidden that a faster link can hide, in bits per second."""
        enough_s = HIDDEN * self.floor_s
        low, high = SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S
        while high / low > PRECISION:
            middle = (low * high) ** 0.5
            is_enough = self.predict_s(bits_per_s=middle) <= enough_s
            low, high = (low, middle) if is_enough else (middle, high)
        return high

    def _change(self, bits_per_s: float) -> Cluster:
        factor = bits_per_s / self.bits_per_s
        torchs = self._cluster.allreduce_bytes_per_s
        return msgspec.structs.replace(
            self._cluster,
            bytes_per_s=self._cluster.bytes_per_s * factor,
            allreduce_bytes_per_s=None if torchs is None else torchs * factor,
        )
