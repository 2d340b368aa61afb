"""The documentation site: `make docs` builds it into build/docs/html."""

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

# Pages are executed in processes of their own, which inherit this.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH")))
)

import prnn_jax  # noqa: E402

project = "prnn_jax"
author = "the prnn_jax authors"
project_copyright = author
version = release = prnn_jax.__version__
html_title = f"prnn_jax {version}"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "drawings",
    "links",
    "pages",
    "signatures",
]
exclude_patterns = ["_ext", "_static"]
# A page that says something wrong fails the build; so do warnings, by `sphinx -W`.
suppress_warnings = ["mystnb.unknown_mime_type"]

# Pages that are programs run at every build; one that fails is an error.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# In docstrings `name` is code, and a link where it is a name of ours.
default_role = "py:obj"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # signatures have the types, as they are written
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 72
add_module_names = False

html_theme = "furo"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f5f8b",
        "color-brand-content": "#1f5f8b",
        "color-brand-visited": "#1f5f8b",
        "color-api-name": "#1f5f8b",
        "color-api-pre-name": "#5b6b78",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab8dc",
        "color-brand-content": "#8ab8dc",
        "color-brand-visited": "#8ab8dc",
        "color-api-name": "#8ab8dc",
        "color-api-pre-name": "#8b98a5",
    },
}
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True

# Equations are drawn by a MathJax that lies beside the pages: reading them needs no
# network. Of the package only what is used.
_mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
assert _mathjax is not None
assert _mathjax.origin is not None
MATHJAX = Path(_mathjax.origin).parent / "static" / "mathjax"
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {
    "chtml": {"scale": 0.95},
    "options": {"enableMenu": False},  # its parts would be asked for one by one
}


def setup(app):
    """Copies MathJax to the site."""

    def copy(app, failure):
        if failure is None and app.builder.format == "html":
            import shutil

            target = Path(app.outdir) / "_static" / "mathjax"
            fonts = "output/chtml/fonts/woff-v2"
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(MATHJAX / "tex-chtml.js", target)
            shutil.copytree(MATHJAX / fonts, target / fonts, dirs_exist_ok=True)

    app.connect("build-finished", copy)
