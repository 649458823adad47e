"""Small cases worked by hand, every step shown, and the judge of a hand computation."""
