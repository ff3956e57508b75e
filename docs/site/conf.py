"""The configuration of the site. `make docs` puts the pages together in build/pages and runs Sphinx there."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

import multistable

project = "multistable"
author = "The multistable developers"
copyright = author
version = release = multistable.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["extra"]
html_extra_path = ["extra"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "config.cache"]  # logs begin with a heading of the second level

autodoc_typehints = "none"  # docstrings say what arguments are; the types are in the sources
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "extra_repr"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
add_module_names = False
maximum_signature_line_length = 90
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = ">>> "

pygments_dark_style = "github-dark"  # furo's own underlines every imported name
html_theme = "furo"
html_title = "multistable"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0067a3"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#6cc0f2"},
    "top_of_page_buttons": [],
}
html_math_renderer = "mathml"

COLON = "\ue000"  # of no script
HAT = re.compile(r"<munderover>\s*(<mi>[^<]*</mi>)\s*(.*?)\s*(<mo [^>]*>\u02c6</mo>)\s*</munderover>", re.DOTALL)
"""A letter with a hat and an index: docutils puts the index below the letter, it belongs beside it."""
TORCH = "https://docs.pytorch.org/docs/stable"
PYTHON = "https://docs.python.org/3/library"
OTHERS = {
    "Tensor": f"{TORCH}/tensors.html",
    "torch.Tensor": f"{TORCH}/tensors.html",
    "torch.library": f"{TORCH}/library.html",
    "torch.func": f"{TORCH}/func.html",
    "Module": f"{TORCH}/generated/torch.nn.Module.html",
    "torch.nn.modules.module.Module": f"{TORCH}/generated/torch.nn.Module.html",
    "object": f"{PYTHON}/functions.html#object",
    "NamedTuple": f"{PYTHON}/typing.html#typing.NamedTuple",
    "ValueError": f"{PYTHON}/exceptions.html#ValueError",
    "RuntimeError": f"{PYTHON}/exceptions.html#RuntimeError",
}


def write_formula(as_block: bool) -> Any:
    """Formulas as MathML, which browsers draw themselves: no script, no server."""

    def visit(translator: Any, node: Any) -> None:
        text = node.astext().replace(r"\dots", r"\ldots")  # the only command that is not known
        aligned = as_block and not text.lstrip().startswith(r"\begin")
        formula = tex2mathml(rf"\begin{{aligned}}{text}\end{{aligned}}" if aligned and "&" in text else text, as_block)
        formula = HAT.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', formula)
        translator.body.append(f'<div class="formula">{formula}</div>' if as_block else formula)
        raise nodes.SkipNode

    return visit


def link_to_others(app: Sphinx, env: Any, node: Any, contents: Any) -> Any:
    """Link names of torch and Python to their own documents, without fetching an index over the network."""
    target = node.get("reftarget", "")
    if target in OTHERS:
        return nodes.reference("", "", contents, internal=False, refuri=OTHERS[target])
    if target.startswith("torch."):
        return nodes.reference("", "", contents, internal=False, refuri=f"{TORCH}/generated/{target}.html")
    if target.startswith(("sb3_contrib.", "tensordict.", "torchrl.")):
        return contents
    return None


def link_to_sources(app: Sphinx, env: Any, node: Any, contents: Any) -> Any:
    """Link what is not public to the page of its file, and methods that a layer inherits to those of `Recurrent`."""
    target, page = node.get("reftarget", ""), node.get("refdoc", "")
    known = env.get_domain("py").objects
    owner = "multistable.layers.Recurrent"
    names = [f"multistable.{target}", f"multistable.ops.{target}"]
    if node.get("reftype") == "meth":
        names = [f"{owner}.{target}", owner]
    found = None if "." in target else next((known[name] for name in names if name in known), None)
    if found is not None:
        return make_refnode(app.builder, page, found.docname, found.node_id, contents)
    parts = target.split(".")
    for count in range(len(parts), 1, -1):
        for name in ("files/src/" + "/".join(parts[:count]) + ".py", "reference/" + ".".join(parts[:count])):
            if name in env.found_docs:
                return make_refnode(app.builder, page, name, "", contents)
    return None


def hide_colons(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon in the first line on an attribute for its type."""
    if what in ("attribute", "property", "data") and lines:
        lines[0] = lines[0].replace(":", COLON)


def show_colons(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (write_formula(False), None), (write_formula(True), None))
    app.connect("missing-reference", link_to_others)
    app.connect("missing-reference", link_to_sources, priority=600)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    assert Path(app.srcdir).name == "pages", "run `make docs`, which puts the pages together first"
