"""The few calls of the CUDA driver that a session needs, straight from the driver's library.

The driver is there wherever a GPU works, and its interface is stable across CUDA
versions, so this needs no package. Names and arguments are those of the CUDA Driver API
reference (`cuda.h`; the `_v2` names are what its macros stand for).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

LIBRARY = "libcuda.so.1"

_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads allocate meanwhile ends no capture.
_THREAD_LOCAL = 1
_NAME_BYTES = 256

_PROTOTYPES: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "cuInit": (c_uint,),
        "cuGetErrorName": (c_int, POINTER(c_char_p)),
        "cuDeviceGet": (POINTER(c_int), c_int),
        "cuDeviceGetName": (c_char_p, c_int, c_int),
        "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
        "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
        "cuCtxSetCurrent": (c_void_p,),
        "cuStreamCreate": (POINTER(c_void_p), c_uint),
        "cuStreamSynchronize": (c_void_p,),
        "cuStreamDestroy_v2": (c_void_p,),
        "cuStreamBeginCapture_v2": (c_void_p, c_int),
        "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
        "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
        "cuGraphLaunch": (c_void_p, c_void_p),
        "cuGraphDestroy": (c_void_p,),
        "cuGraphExecDestroy": (c_void_p,),
        "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
        "cuMemFree_v2": (c_uint64,),
        "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
        "cuMemFreeHost": (c_void_p,),
        "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
        "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    }
)


class CudaError(Exception):
    """The driver is missing, or refused a call."""


@dataclass(frozen=True, slots=True)
class GpuName:
    """A GPU as the driver calls it, and its compute capability, such as "9.0"."""

    name: str
    compute_capability: str


class Driver:
    """The driver's library with every call checked; CudaError if there is none or no GPU."""

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = library or ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(f"no NVIDIA driver: {error}") from error
        for name, arguments in _PROTOTYPES.items():
            getattr(self._library, name).argtypes = arguments
        self.call("cuInit", 0)
        device = c_int()
        # Ordinal 0 of those that CUDA_VISIBLE_DEVICES leaves.
        self.call("cuDeviceGet", byref(device), 0)
        self.device = device.value

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver; CudaError names what it answered if that is not success."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = c_char_p()
            self._library.cuGetErrorName(code, byref(text))
            raise CudaError(f"{name}: {(text.value or b'error %d' % code).decode()}")

    def describe(self) -> GpuName:
        """What the device is; makes no context."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("cuDeviceGetName", name, _NAME_BYTES, self.device)
        version = c_int(), c_int()
        for part, attribute in zip(version, _COMPUTE_CAPABILITY, strict=True):
            self.call("cuDeviceGetAttribute", byref(part), attribute, self.device)
        return GpuName(name.value.decode(), f"{version[0].value}.{version[1].value}")


class Gpu:
    """One stream on the device's primary context, which TensorRT uses too."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._context = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(self._context), driver.device)
        self.attach()
        stream = c_void_p()
        driver.call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        self.stream = int(stream.value or 0)
        weakref.finalize(self, driver.call, "cuStreamDestroy_v2", stream).atexit = False

    def attach(self) -> None:
        """Make the context current in this thread, as every other call needs it to be."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> Buffer:
        """Device memory of at least `size` bytes, freed with its Buffer."""
        address = c_uint64()
        self._driver.call("cuMemAlloc_v2", byref(address), max(size, 1))
        buffer = Buffer(int(address.value), size)
        weakref.finalize(buffer, self._release, "cuMemFree_v2", address).atexit = False
        return buffer

    def pin(self, size: int) -> np.ndarray:
        """`size` bytes of the host's memory that stay where they are, freed with their last view.

        Only such memory is copied while the device computes: of other memory the driver makes a
        copy first.
        """
        address = c_void_p()
        self._driver.call("cuMemHostAlloc", byref(address), max(size, 1), _PORTABLE)
        memory = (c_ubyte * size).from_address(int(address.value or 0))
        weakref.finalize(memory, self._release, "cuMemFreeHost", address).atexit = False
        return np.frombuffer(memoryview(memory), np.uint8)

    def _release(self, name: str, address: Any) -> None:
        """Free memory, in whichever thread its last user was."""
        self.attach()
        self._driver.call(name, address)

    def upload(self, array: np.ndarray, buffer: Buffer) -> None:
        """Queue a copy of a contiguous array, which must stay as it is until `synchronize`."""
        self._driver.call(
            "cuMemcpyHtoDAsync_v2", buffer.address, array.ctypes.data, array.nbytes, self.stream
        )

    def download(self, buffer: Buffer, array: np.ndarray) -> None:
        """Queue a copy into a contiguous array, which is filled after `synchronize`."""
        self._driver.call(
            "cuMemcpyDtoHAsync_v2", array.ctypes.data, buffer.address, array.nbytes, self.stream
        )

    def capture(self, work: Callable[[], None]) -> Graph:
        """What `work` queues on the stream, as one graph; nothing of it is done yet.

        It may neither allocate nor wait. CudaError, or what `work` raises, if there is no graph.
        """
        self._driver.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
        graph, launched = c_void_p(), c_void_p()
        try:
            try:
                work()
            finally:
                # Also of a capture that failed: a stream that captures takes nothing else.
                self._driver.call("cuStreamEndCapture", self.stream, byref(graph))
            self._driver.call("cuGraphInstantiateWithFlags", byref(launched), graph, 0)
        finally:
            if graph:
                self._driver.call("cuGraphDestroy", graph)
        found = Graph(self._driver, launched, self.stream)
        weakref.finalize(found, self._release, "cuGraphExecDestroy", launched).atexit = False
        return found

    def synchronize(self) -> None:
        """Wait for everything queued on the stream."""
        self._driver.call("cuStreamSynchronize", self.stream)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Buffer:
    """Device memory; it lives as long as this object."""

    address: int
    size: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Graph:
    """Captured work that is launched as a whole; its addresses must stay what they were."""

    driver: Driver
    handle: c_void_p
    stream: int

    def launch(self) -> None:
        """Queue all of it on the stream that it was captured from."""
        self.driver.call("cuGraphLaunch", self.handle, self.stream)
