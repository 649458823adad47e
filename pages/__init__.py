"""What the README and the docs show, run: blocks of code, the output they claim, the gallery as notebooks, the site."""


class PageError(Exception):
    """A page, a notebook or the site is not as it should be."""
