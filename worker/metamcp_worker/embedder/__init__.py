"""The process that makes vectors of texts for all fronts, by an endpoint or by itself."""
