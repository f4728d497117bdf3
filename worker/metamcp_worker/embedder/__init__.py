"""Process that makes vectors of texts for all fronts, with an endpoint or a model of its own."""
