"""Large results that a gateway keeps: what clients get in their place, files, parts of them."""
