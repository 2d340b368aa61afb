"""The check that keeps XLA from refusing the module, and with it every backend."""

import jax
import pytest

from prnn_jax._engine import modules


@pytest.mark.parametrize("runtime", [(0, 3), (0, 4), (0, 12)], ids=str)
def test_headers_no_newer_than_the_runtime_pass(runtime):
    modules.check_api_version((0, 3), runtime)


@pytest.mark.parametrize(
    ("built", "runtime"),
    [((0, 4), (0, 3)), ((0, 10), (0, 9)), ((1, 0), (0, 9)), ((0, 9), (1, 0))],
    ids=str,
)
def test_others_are_an_import_error_that_says_what_to_do(built, runtime):
    with pytest.raises(ImportError) as raised:
        modules.check_api_version(built, runtime)
    message = str(raised.value)
    assert f"compiled for XLA FFI API {built[0]}.{built[1]}" in message
    assert f"jaxlib {jax.lib.__version__} offers {runtime[0]}.{runtime[1]}" in message
    assert "pip install" in message
    assert "upgrade jax" in message


def test_the_versions_are_read_from_what_is_installed(monkeypatch):
    seen = []
    monkeypatch.setattr(modules, "check_api_version", lambda *args: seen.append(args))
    # Registering twice is an error of JAX's.
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *args, **kwargs: None)
    modules._import_native()
    ((built, runtime),) = seen
    assert len(built) == len(runtime) == 2
    assert built <= runtime
