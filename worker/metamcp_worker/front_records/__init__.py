"""Records of the calls of a front: their log, their audit, their spans."""
