"""The links of a built site: each leads to a file and an anchor in it, and nothing is fetched from elsewhere."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pages import PageError

ATTRIBUTES = {"href", "src", "poster", "data", "action"}
FOLLOWED = {"a", "area", "form"}  # a person goes there; everything else is fetched by the browser itself
HARMLESS = {"canonical", "alternate", "prev", "next"}
FETCHED_BY_STYLE = re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')]+)")


@dataclass(frozen=True)
class Link:
    """Return the target of an element, and whether the browser fetches it by itself."""

    target: str
    fetched: bool


@dataclass
class Page(HTMLParser):
    """A page's anchors and links."""

    anchors: set[str] = field(default_factory=set)
    links: list[Link] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element is called and where it leads."""
        attributes = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := attributes.get(key))}
        fetched = tag not in FOLLOWED and attributes.get("rel") not in HARMLESS
        self.links += [Link(value or "", fetched) for key, value in attrs if key in ATTRIBUTES]


def read_page(text: str) -> Page:
    """The anchors and links of a page.

    >>> read_page('<h1 id="top"><a href="a.html#b">a</a></h1>').links
    [Link(target='a.html#b', fetched=False)]
    """
    page = Page()
    page.feed(text)
    return page


def trouble(link: Link, path: Path, site: Path, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with a link, if anything is."""
    parts = urlsplit(link.target)
    if parts.scheme == "data" or (parts.scheme == "mailto" and "@" in parts.path):
        return None
    if parts.scheme or parts.netloc:
        return _trouble_outside(link, parts.scheme, parts.netloc)
    target_file = _file(unquote(parts.path), path, site)
    if not target_file.is_file():
        return "no such file"
    if parts.fragment and unquote(parts.fragment) not in pages[target_file].anchors:
        return "no such anchor"
    return None


def _trouble_outside(link: Link, scheme: str, host: str) -> str | None:
    if scheme not in {"http", "https", ""} or not re.fullmatch(r"[\w.-]+(:\d+)?", host):
        return "not an address"
    return "fetched from elsewhere" if link.fetched else None


def _file(target: str, path: Path, site: Path) -> Path:
    """The file that a link of a page means."""
    start = site if target.startswith("/") else path.parent
    resolved = (start / target.lstrip("/")).resolve() if target else path
    return resolved / "index.html" if resolved.is_dir() else resolved


def troubles(site: Path) -> list[str]:
    """Every dead link of a site, and everything that a page or a style would fetch from elsewhere."""
    pages = {path: read_page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    dead = [
        f"{path.relative_to(site)}: {link.target!r}: {why}"
        for path, page in pages.items()
        for link in page.links
        if (why := trouble(link, path, site, pages))
    ]
    styles = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    return dead + [
        f"{path.relative_to(site)}: {address!r}: fetched from elsewhere"
        for path, text in styles.items()
        for address in FETCHED_BY_STYLE.findall(text)
    ]


def check_site(site: Path) -> None:
    """Look through a built site; anything wrong with its links is an error."""
    if not (site / "index.html").is_file():
        raise PageError(f"{site.name} holds no index.html. To build the site: make docs")
    if messages := troubles(site):
        raise PageError("\n".join(messages))
