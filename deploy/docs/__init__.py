"""What is written from the program itself: reference pages, man pages, the documentation site."""
