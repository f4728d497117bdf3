"""Getting authorized towards remote servers, as an OAuth client: for workers, and for login."""
