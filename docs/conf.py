"""The configuration of Sphinx.

`tools/build_site.py` copies the folder `docs/`, adds generated pages to the copy, and runs Sphinx on the copy.
"""

import torchdata

project = "torchdata-rs"
author = "The torchdata-rs developers"
copyright = author
release = torchdata.__version__.partition("+rs.")[2]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "code_links"]
exclude_patterns = ["_static"]

# Markdown
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Reference
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a method is documented in the class that defines its docstring
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 72
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
nitpicky = False

# Pages
html_theme = "furo"
html_title = f"torchdata-rs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True}
copybutton_selector = ":not(.highlight-text) > div.highlight > pre"  # output has no button
copybutton_exclude = ".gp, .go"  # prompts and output are not copied
pygments_style = "a11y-light"  # a contrast of at least 4.5:1
pygments_dark_style = "monokai"
