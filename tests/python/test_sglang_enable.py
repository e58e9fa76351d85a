"""enable() and disable() on packages that are laid out as SGLang is, in several versions."""

import importlib.util
import inspect
import os
import subprocess
import sys
import textwrap

import pytest

import ringfold.integrations.sglang as adapter
from ringfold.integrations import _sglang_patches as patches

UPDATE = "fused_sigmoid_gating_delta_rule_update"
OPS, KERNELS = "sglang.kernels.ops.attention", "sglang.srt.layers.attention.linear.kernels"


def parameters(name, dropped=()):
    given = inspect.signature(getattr(adapter, name)).parameters.values()
    return ", ".join(str(parameter) for parameter in given if parameter.name not in dropped)


def function(name, dropped=()):
    return f"def {name}({parameters(name, dropped)}):\n    return 'the original {name}'\n\n\n"


def tree(folder, release):
    """module -> text, as SGLang's releases have it: a definition, users that import it by name, or when they run."""
    update = f"{OPS}.{folder}.fused_sigmoid_gating_recurrent"
    dropped = ("match_cutedsl_decode",) if release < (0, 5, 22) else ()
    users = f"from {update} import {UPDATE}\n\n\ndef verify():\n    return {UPDATE}\n"
    return {update: function(UPDATE, dropped),
            f"{KERNELS}.gdn_triton": users, f"{KERNELS}.kda_triton": users,
            "sglang.srt.layers.attention.linear.gdn_backend":
                f"def verify():\n    from {update} import {UPDATE}\n    return {UPDATE}\n",
            f"{OPS}.{folder}.gdn_replayssm_spec_fold": function("commit_gdn_replayssm_fold_all_layers"),
            f"{OPS}.{folder}.kda_replayssm_spec_decode":
                function("commit_kda_replayssm_spec") + function("commit_kda_replayssm_spec_all_layers"),
            f"{OPS}.cutedsl_gdn_mtp_ring": function("gated_delta_rule_mtp")}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes a package, and takes it and all patches away afterwards."""
    assert "sglang" not in sys.modules, "a real SGLang is loaded: these tests cannot run beside it"

    def write(version, modules):
        (tmp_path / "sglang").mkdir()
        (tmp_path / "sglang" / "__init__.py").write_text(
            "" if version is None else f"__version__ = {version!r}\n", encoding="utf-8")
        for module, text in modules.items():
            path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            for parent in path.relative_to(tmp_path).parents:
                if parent.parts and not (tmp_path / parent / "__init__.py").exists():
                    (tmp_path / parent / "__init__.py").write_text("", encoding="utf-8")
            path.write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    adapter.disable()
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


def found(report):
    objects = {}
    for name in report.replaced:
        module, _, attribute = name.rpartition(".")
        objects[name] = getattr(importlib.import_module(module), attribute)
    return objects


@pytest.mark.parametrize("version, folder", [("0.5.18", "fla"), ("0.5.21", "fla"), ("0.5.22", "fla"),
                                             ("0.5.23", "linear"), ("0.5.23+cu130", "linear")])
def test_replaced_and_restored(install, version, folder, capfd):
    install(version, tree(folder, tuple(map(int, version.partition("+")[0].split(".")))))
    expected = {f"{OPS}.{folder}.fused_sigmoid_gating_recurrent": [UPDATE], f"{KERNELS}.gdn_triton": [UPDATE],
                f"{KERNELS}.kda_triton": [UPDATE],
                f"{OPS}.{folder}.gdn_replayssm_spec_fold": ["commit_gdn_replayssm_fold_all_layers"],
                f"{OPS}.{folder}.kda_replayssm_spec_decode": ["commit_kda_replayssm_spec",
                                                              "commit_kda_replayssm_spec_all_layers"],
                f"{OPS}.cutedsl_gdn_mtp_ring": ["gated_delta_rule_mtp"]}
    names = [f"{module}.{attribute}" for module, attributes in expected.items() for attribute in attributes]
    originals = {name: getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
                 for name in names}
    report = adapter.enable()
    assert report == adapter.Report(version, tuple(names), ())
    for name, value in found(report).items():
        assert value is getattr(adapter, name.rpartition(".")[2]) and value is not originals[name]
    backend = importlib.import_module("sglang.srt.layers.attention.linear.gdn_backend")
    user = importlib.import_module(f"{KERNELS}.kda_triton")
    ours = adapter.fused_sigmoid_gating_delta_rule_update
    assert backend.verify() is ours and user.verify() is ours
    assert adapter.enable() is report  # again: nothing happens
    undone = adapter.disable()
    assert undone.version == version and sorted(undone.replaced) == sorted(names) and undone.skipped == ()
    for name, value in found(report).items():
        assert value is originals[name]
    assert user.verify() is originals[f"{KERNELS}.kda_triton.{UPDATE}"]
    assert adapter.disable() == adapter.Report("", (), ())
    assert adapter.enable() == report  # and on again
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("version", ["0.5.17", "0.5.24", "0.6.0", "1.0", "0.5.23.post1", "0.5.23rc1", "0.5.23.dev7+g1",
                                     "0.0.0.dev0", "main"])
def test_unknown_versions_are_refused(install, version):
    install(version, tree("linear", (0, 5, 23)))
    with pytest.raises(NotImplementedError) as caught:
        adapter.enable(strict=False)
    assert str(caught.value) == f"sglang: expected a version that is known (0.5.18 to 0.5.22, 0.5.23), found {version}"
    assert not any(name.startswith("sglang.") for name in sys.modules)


def test_a_package_without_a_version_is_refused(install):
    install(None, tree("linear", (0, 5, 23)))
    with pytest.raises(NotImplementedError, match="^sglang.__version__: expected a release .*, found None$"):
        adapter.enable()


@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="SGLang is installed")
def test_not_installed():
    with pytest.raises(ImportError, match=r"^ringfold: expected an installed sglang \(0.5.18 to .*\), found none$"):
        adapter.enable()


@pytest.mark.parametrize("change, reason", [
    ({f"{OPS}.cutedsl_gdn_mtp_ring": "import a_compiler_that_is_not_there\n"},
     f"{OPS}.cutedsl_gdn_mtp_ring.gated_delta_rule_mtp: cannot be imported (No module named "
     "'a_compiler_that_is_not_there')"),
    ({f"{KERNELS}.kda_triton": "other = 1\n"},
     f"{KERNELS}.kda_triton.{UPDATE}: expected a function, found nothing"),
    ({f"{OPS}.linear.gdn_replayssm_spec_fold": "def commit_gdn_replayssm_fold_all_layers(state, rings):\n    pass\n"},
     f"{OPS}.linear.gdn_replayssm_spec_fold.commit_gdn_replayssm_fold_all_layers: expected the arguments "
     "checkpoint_state, rawv_cache, "),
], ids=["module", "function", "arguments"])
def test_places_that_are_not_as_expected(install, change, reason):
    """Nothing is replaced, or, when that is asked for, all the others are."""
    install("0.5.23", {**tree("linear", (0, 5, 23)), **change})
    with pytest.raises(NotImplementedError) as caught:
        adapter.enable()
    assert str(caught.value).startswith("sglang 0.5.23: nothing was replaced, since it is not as expected: " + reason)
    decode = importlib.import_module(f"{OPS}.linear.kda_replayssm_spec_decode")
    assert decode.commit_kda_replayssm_spec is not adapter.commit_kda_replayssm_spec
    report = adapter.enable(strict=False)
    assert len(report.replaced) == 6 and len(report.skipped) == 1 and report.skipped[0].startswith(reason)
    assert decode.commit_kda_replayssm_spec is adapter.commit_kda_replayssm_spec


def test_a_later_replacement_of_somebody_else_is_left_alone(install):
    install("0.5.23", tree("linear", (0, 5, 23)))
    fold = importlib.import_module(f"{OPS}.linear.gdn_replayssm_spec_fold")
    adapter.enable()
    theirs = fold.commit_gdn_replayssm_fold_all_layers = lambda: None
    report = adapter.disable()
    assert fold.commit_gdn_replayssm_fold_all_layers is theirs and len(report.replaced) == 6
    assert report.skipped == (f"{OPS}.linear.gdn_replayssm_spec_fold.commit_gdn_replayssm_fold_all_layers: replaced by "
                              "somebody else since",)


def test_the_table_names_functions_that_are_there():
    for _, _, places in patches._TABLE:
        for module, attribute in places:
            assert callable(getattr(adapter, attribute)) and module.startswith("sglang.")


def test_calls_reach_the_replacement(install):
    """Through a module that has imported the name, in a process of its own, down to the arithmetic."""
    pytest.importorskip("torch", reason="torch is not installed")
    install("0.5.22", tree("fla", (0, 5, 22)))
    code = textwrap.dedent(f"""
        import torch
        from {KERNELS} import gdn_triton
        import ringfold.integrations.sglang as adapter
        inputs = [torch.zeros(1), torch.zeros(2, 1), torch.zeros(1), 1.0, 20.0, *torch.ones(3, 1, 2, 1, 4),
                  torch.zeros(2, 1), torch.zeros(2, 1, 4, 4), torch.tensor([1], dtype=torch.int32)]
        call = lambda: getattr(gdn_triton, "{UPDATE}")(*inputs, disable_state_update=True)
        assert call() == "the original {UPDATE}"
        adapter.enable()
        out = call()
        assert out.shape == (1, 2, 1, 4) and out.abs().min() > 0
        adapter.disable()
        assert call() == "the original {UPDATE}"
    """)
    subprocess.run([sys.executable, "-c", code], check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
