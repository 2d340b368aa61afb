"""Recurrent networks for audio, with what is around them."""
