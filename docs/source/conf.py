"""Configuration of the documentation; nothing here needs the network."""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gnnprof import __version__

HERE = Path(__file__).parent

project = "gnnprof"
author = "The gnnprof developers"
copyright = author
version = release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"gnnprof {version}"
html_copy_source = False
templates_path = ["_templates"]
default_role = "code"  # docstrings mark code with single backticks

autosummary_generate = True
autodoc_typehints = "none"  # the signature of a class with many fields is unreadable with them
napoleon_use_ivar = True  # fields of records are listed once, in the class


class Seen(SphinxDirective):
    """`.. seen:: case ...`: what `docs/side_by_side.py` has recorded of these cases."""

    required_arguments = 1
    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        recorded = HERE / "side_by_side.txt"
        self.env.note_dependency(str(recorded))
        cases = {text.partition(":")[0]: text for text in recorded.read_text("utf-8").split("\n\n")}
        for name in self.arguments:
            if name not in cases:
                raise self.error(f"side_by_side.txt has no case {name!r}")
        text = "\n\n".join(cases[name].rstrip() for name in self.arguments)
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> None:
    app.add_directive("seen", Seen)
