"""The CUDA engine of prnn_jax, which finds it here: nothing to call."""
