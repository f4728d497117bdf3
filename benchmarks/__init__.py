"""Measurements of the gateway, as ratios between commands of one run."""
