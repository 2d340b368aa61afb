"""How large what a layer computes is, and its gradients."""
