"""What linters cannot see: names, layers, words, and that the documentation says what is so."""
