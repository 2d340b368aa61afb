"""In pages, `prnn_jax.lstm` as code is a link to where that is described."""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

_NAME = re.compile(r"prnn_jax((\.\w+)+)(\(.*\))?", re.DOTALL)


class Links(SphinxTransform):
    """Code that is a name of ours becomes a reference."""

    default_priority = 400

    def apply(self):
        """As Sphinx calls it."""
        for node in [*self.document.findall(nodes.literal)]:
            match = _NAME.fullmatch(node.astext())
            inside = nodes.reference, pending_xref, nodes.title
            if match is None or any(isinstance(p, inside) for p in _above(node)):
                continue
            reference = pending_xref(
                "",
                refdomain="py",
                reftype="obj",
                reftarget=f"prnn_jax{match[1]}",
                refdoc=self.env.docname,
                refwarn=False,
            )
            node.replace_self(reference)
            reference += node


def _above(node):
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app):
    """As Sphinx calls it."""
    app.add_transform(Links)
    return {"parallel_read_safe": True}
