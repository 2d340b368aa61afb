"""Recurrent PPO: a policy on prnn_jax's GRU learns to remember a cue."""
