"""Measurements of a loader for other programs: Prometheus, OpenTelemetry, TensorBoard, logs."""
