"""Speech recognition of spoken digits: a small Deep Speech 2 on prnn_jax layers."""
