"""`CompiledKernel`: CUDA C++ of this package, compiled when first used and launched with overlap.

For what Triton cannot say; compiling takes some tenths of a second. Needs the package
`cuda-bindings`, which torch's builds for CUDA 13 bring along.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver, nvrtc
from deepinfer_core.errors import PlatformError
from torch import Tensor
from triton.runtime.cache import get_cache_manager

from deepinfer_cuda.compile_errors import SourceError


class CompiledKernel:
    """One kernel with its constants, on one device.

    Args:
        source: file in `deepinfer_cuda/sources`, which has a kernel of its own name.
        constants: macros that it is compiled with.
        shared_bytes: of shared memory that a block of threads takes.
    """

    def __init__(
        self,
        source: str,
        constants: Mapping[str, int],
        *,
        num_threads: int,
        shared_bytes: int,
        device: torch.device,
    ) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        binary = compile_source(source, tuple(sorted(constants.items())), f"sm_{major}{minor}")
        self._module = _checked(driver.cuModuleLoadData(binary))
        self._function = _checked(driver.cuModuleGetFunction(self._module, source.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self._function, limit, shared_bytes))
        self._config = driver.CUlaunchConfig()
        self._config.blockDimX, self._config.blockDimY, self._config.blockDimZ = num_threads, 1, 1
        self._config.gridDimY = self._config.gridDimZ = 1
        self._config.sharedMemBytes = shared_bytes
        overlap = driver.CUlaunchAttribute()
        overlap.id = (
            driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        )
        overlap.value.programmaticStreamSerializationAllowed = 1
        self._config.attrs = [overlap]

    def launch(
        self,
        num_blocks: int,
        tensors: Sequence[Tensor | None],
        numbers: Sequence[int],
        strides: Sequence[int],
        factors: Sequence[float] = (),
    ) -> None:
        """Queue it on the current stream; recorded, it starts while the one before it ends.

        Arguments in this order.

        Args:
            tensors: passed as pointers, None as a null pointer.
            numbers: passed as `int`.
            strides: passed as `long long`.
            factors: passed as `float`.
        """
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        types: list[Any] = [ctypes.c_void_p] * len(pointers) + [ctypes.c_int] * len(numbers)
        types += [ctypes.c_longlong] * len(strides) + [ctypes.c_float] * len(factors)
        self._config.gridDimX = num_blocks
        # A kernel may read weights before it waits. In steps that are recorded nobody has just
        # written them; elsewhere the kernel before this one may have.
        self._config.numAttrs = int(torch.cuda.is_current_stream_capturing())
        self._config.hStream = torch.cuda.current_stream().cuda_stream
        arguments = ((*pointers, *numbers, *strides, *factors), tuple(types))
        _checked(driver.cuLaunchKernelEx(self._config, self._function, arguments, 0))


@cache
def compile_source(name: str, constants: tuple[tuple[str, int], ...], arch: str) -> bytes:
    """A binary for one architecture, such as `sm_90`, kept where Triton keeps its own.

    Needs no GPU.

    Raises:
        SourceError: it does not compile, with what the compiler said.
    """
    text = files("deepinfer_cuda").joinpath("sources", f"{name}.cu").read_bytes()
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"-D{macro}={value}" for macro, value in constants]
    facts = (text, options, _checked(nvrtc.nvrtcVersion()))
    kept = get_cache_manager(hashlib.sha256(repr(facts).encode()).hexdigest())
    file = f"{name}.cubin"
    if path := kept.get_file(file):
        return Path(path).read_bytes()
    binary = _compile(text, name, arch, options)
    kept.put(binary, file)
    return binary


def _compile(text: bytes, name: str, arch: str, options: Sequence[str]) -> bytes:
    program = _checked(nvrtc.nvrtcCreateProgram(text, f"{name}.cu".encode(), 0, [], []))
    status = nvrtc.nvrtcCompileProgram(
        program, len(options), [option.encode() for option in options]
    )[0]
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise SourceError(f"kernel {name} does not compile for {arch}: {log.decode()}")
    binary: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, binary))
    return binary


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status.value:
        raise PlatformError(f"CUDA refused: {status.name}")
    return values if len(values) > 1 else values[0] if values else None
