"""Settings that all Python tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code; the watchdog of each test is pytest-timeout's.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
