"""The Grafana dashboards, and what makes them: `python -m deploy.grafana.build`."""
