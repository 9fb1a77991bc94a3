# How Sphinx makes pages of docs/*.md: make site.
import re

project = "quorate"
author = "the quorate authors"
extensions = ["myst_parser"]
exclude_patterns = ["site"]
root_doc = "index"

# Headings have the anchors that forges give them.
myst_heading_anchors = 4

highlight_language = "none"

html_theme = "furo"
html_title = "quorate"
html_static_path = ["tables.css"]
html_css_files = ["tables.css"]
html_extra_path = ["../evidence/report-sample.html"]
# Text and styles of the pages themselves; a browser that has no network, or reads them from the file system, misses nothing.
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_search_summary = False


def navigation(app, name, source):
    """Each section of the start page is a chapter of the navigation, with the pages that it links to."""
    # What is beside docs is read on a forge, not here.
    outside = re.escape("../" * (name.count("/") + 1))
    source[0] = re.sub(r"\[([^]]+)\]\(" + outside + r"[^)]+\)", r"\1", source[0])
    if name != "index":
        return
    chapters = ""
    for section in re.split(r"^## ", source[0], flags=re.M)[1:]:
        pages = dict.fromkeys(re.findall(r"\]\(([a-z0-9/-]+)\.md\)", section))
        title = section.splitlines()[0]
        chapters += "\n```{toctree}\n:hidden:\n:caption: %s\n\n%s\n```\n" % (title, "\n".join(pages))
    source[0] += chapters


def setup(app):
    app.connect("source-read", navigation)
