"""Dashboards, rules and their runbook, proven against a real Prometheus."""
