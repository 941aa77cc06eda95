"""How hypothesis runs here. Warnings, random order and time limits: ``pyproject.toml``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline and no `too_slow`: on a shared machine a slow example says nothing about the code.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("default", _PATIENT)
# What is red on CI is red again on a developer's machine with HYPOTHESIS_PROFILE=ci.
settings.register_profile("ci", _PATIENT, derandomize=True, print_blob=True)
settings.register_profile("nightly", _PATIENT, max_examples=2000)

_FALLBACK = "ci" if os.environ.get("CI") else "default"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _FALLBACK))
