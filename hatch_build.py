"""The kernel in what is installed: compiled into wheels, beside its source for editable installs."""

import importlib.util
import os
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):
    """Compiles ``planner/predict/kernel.c``; ``FLEETOPT_KERNEL=python`` leaves it out, and the wheel is for any machine."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.wanted = os.environ.get("FLEETOPT_KERNEL") != "python"
        # by its path: what the package itself needs is not there while it is built
        spec = importlib.util.spec_from_file_location("kernel_build", Path(self.root, "planner", "predict", "build.py"))
        self.build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.build)

    def dependencies(self):
        """A compiler that comes as a wheel, where the system has none."""
        return [] if not self.wanted or self.build.can_compile() else ["ziglang"]

    def initialize(self, version, build_data):
        """Compile, and say that the wheel is for this kind of machine and any Python."""
        if not self.wanted:
            return
        source = self.build.SOURCE
        try:
            binary = self.build.compiled()
        except self.build.BuildError as error:
            self.app.abort(f"The kernel cannot be compiled: {error}. FLEETOPT_KERNEL=python installs without it.")
        if version == "editable":
            try:
                self.build.keep(binary, source, source.parent)
            except OSError as error:
                self.app.display_warning(f"{source.parent}: {error.strerror}; the kernel is built when it is used")
            return
        # lives as long as the hook does, which is until the wheel is written
        self.folder = tempfile.TemporaryDirectory()
        library = self.build.keep(binary, source, Path(self.folder.name))
        build_data["force_include"][str(library)] = f"planner/predict/{library.name}"
        build_data["pure_python"] = False
        _, _, platform = self.build_config.builder.get_best_matching_tag().split("-")
        build_data["tag"] = f"py3-none-{platform}"
