"""Tests of the process that writes the audit."""
