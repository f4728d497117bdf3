"""Lives: what happens to servers and fronts, decided in pure modules and carried out beside."""
