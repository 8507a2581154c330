"""Hypothesis without a deadline: the machine is noisy, and a slow example is not a wrong one."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")
