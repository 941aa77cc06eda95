"""How long a worker's processes wait between two tries to reach a broker that is away."""

import pytest

from umbel.worker.patience import longest_pause


@pytest.mark.parametrize(("lease", "pause"), [(1.0, 0.25), (8.0, 2.0), (30.0, 2.0), (3600.0, 2.0)])
def test_the_return_is_noticed_soon_and_within_half_a_lease(lease: float, pause: float) -> None:
    assert longest_pause(lease) == pause
