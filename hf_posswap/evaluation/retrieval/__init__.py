"""Something to be found in a long context: passkeys, needles, and a light form of RULER."""
