import ctypes
import gc
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from typing import Any

import numpy as np
import pytest

from services.tensorrt.cuda import CudaError, Driver, Gpu

OUT_OF_MEMORY = 2
NOT_WHILE_CAPTURING = 900
INVALIDATED = 901


class HostDriver:
    """The driver's functions over host memory, with the prototypes that cuda.h gives them."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.memory: dict[int, Any] = {}
        self.current: int | None = None
        self.synchronized = 0
        self.capturing: list[Callable[[], Any]] | None = None
        self.graphs: dict[int, list[Callable[[], Any]]] = {}
        self.launches = 0
        self.captures = True
        self.fails: set[str] = set()
        self._limit = limit
        stream_copy = (c_size_t, c_void_p)
        self._bind("cuInit", lambda _: 0, c_uint)
        self._bind("cuGetErrorName", self._error_name, c_int, POINTER(c_char_p))
        self._bind("cuDeviceGet", self._device, POINTER(c_int), c_int)
        self._bind("cuDeviceGetName", self._name, c_void_p, c_int, c_int)
        self._bind("cuDeviceGetAttribute", self._attribute, POINTER(c_int), c_int, c_int)
        self._bind("cuDevicePrimaryCtxRetain", self._context, POINTER(c_void_p), c_int)
        self._bind("cuCtxSetCurrent", self._set_current, c_void_p)
        self._bind("cuStreamCreate", self._stream, POINTER(c_void_p), c_uint)
        self._bind("cuStreamSynchronize", self._synchronize, c_void_p)
        self._bind("cuStreamDestroy_v2", lambda _: 0, c_void_p)
        self._bind("cuStreamBeginCapture_v2", self._begin_capture, c_void_p, c_int)
        self._bind("cuStreamEndCapture", self._end_capture, c_void_p, POINTER(c_void_p))
        handle = POINTER(c_void_p)
        self._bind("cuGraphInstantiateWithFlags", self._instantiate, handle, c_void_p, c_uint64)
        self._bind("cuGraphLaunch", self._launch, c_void_p, c_void_p)
        self._bind("cuGraphDestroy", self._destroy, c_void_p)
        self._bind("cuGraphExecDestroy", self._destroy, c_void_p)
        self._bind("cuMemAlloc_v2", self._allocate, POINTER(c_uint64), c_size_t)
        self._bind("cuMemFree_v2", self._free, c_uint64)
        self._bind("cuMemHostAlloc", self._pin, POINTER(c_void_p), c_size_t, c_uint)
        self._bind("cuMemFreeHost", self._free, c_void_p)
        self._bind("cuMemcpyHtoDAsync_v2", self._copy, c_uint64, c_void_p, *stream_copy)
        self._bind("cuMemcpyDtoHAsync_v2", self._copy, c_void_p, c_uint64, *stream_copy)

    def _bind(self, name: str, function: Any, *arguments: Any) -> None:
        setattr(self, name, CFUNCTYPE(c_int, *arguments)(function))

    def _error_name(self, _: int, text: Any) -> int:
        text[0] = b"CUDA_ERROR_OUT_OF_MEMORY"
        return 0

    def _device(self, device: Any, ordinal: int) -> int:
        device[0] = ordinal
        return 0

    def _name(self, text: int, size: int, _: int) -> int:
        ctypes.memmove(text, b"NVIDIA H200\0", min(size, 12))
        return 0

    def _attribute(self, value: Any, attribute: int, _: int) -> int:
        value[0] = {75: 9, 76: 0}[attribute]
        return 0

    def _context(self, context: Any, _: int) -> int:
        context[0] = 0x7F00_0000_0001
        return 0

    def _set_current(self, context: int) -> int:
        self.current = context
        return 0

    def _stream(self, stream: Any, _: int) -> int:
        stream[0] = 0x7F00_0000_0002
        return 0

    def queue(self, work: Callable[[], Any]) -> None:
        """Do it, or keep it for the graph that is captured."""
        (work() if self.capturing is None else self.capturing.append(work))

    def _begin_capture(self, _: int, mode: int) -> int:
        assert (self.capturing, mode) == (None, 1)
        self.capturing = []
        return 0

    def _end_capture(self, _: int, graph: Any) -> int:
        captured, self.capturing = self.capturing, None
        if captured is None or not self.captures:
            return INVALIDATED
        graph[0] = self._keep(captured)
        return 0

    def _instantiate(self, launched: Any, graph: int, flags: int) -> int:
        launched[0] = self._keep(self.graphs[graph])
        return flags

    def _keep(self, work: list[Callable[[], Any]]) -> int:
        handle = max(self.graphs, default=0x6F00_0000_0000) + 1
        self.graphs[handle] = work
        return handle

    def _launch(self, graph: int, _: int) -> int:
        if "cuGraphLaunch" in self.fails:
            return OUT_OF_MEMORY
        self.launches += 1
        for work in self.graphs[graph]:
            work()
        return 0

    def _destroy(self, graph: int) -> int:
        del self.graphs[graph]
        return 0

    def _synchronize(self, stream: int) -> int:
        if self.capturing is not None:
            return NOT_WHILE_CAPTURING
        self.synchronized += 1
        return 0 if stream == 0x7F00_0000_0002 else 1

    def _allocate(self, address: Any, size: int) -> int:
        if self.capturing is not None:
            return NOT_WHILE_CAPTURING
        if size > self._limit or size == 0:
            return OUT_OF_MEMORY
        memory = ctypes.create_string_buffer(size)
        address[0] = ctypes.addressof(memory)
        self.memory[ctypes.addressof(memory)] = memory
        return 0

    def _pin(self, address: Any, size: int, flags: int) -> int:
        return self._allocate(address, size) if flags == 1 else 1

    def _free(self, address: int) -> int:
        del self.memory[address]
        return 0

    def _copy(self, target: int, source: int, size: int, _: int) -> int:
        self.queue(partial(ctypes.memmove, target, source, size))
        return 0


def test_says_which_gpu_it_is() -> None:
    gpu = Driver(HostDriver()).describe()
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA H200", "9.0")


def test_arrays_go_there_and_back() -> None:
    library = HostDriver()
    gpu = Gpu(Driver(library))
    assert library.current == 0x7F00_0000_0001
    sent = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = gpu.allocate(sent.nbytes)
    gpu.upload(sent, buffer)
    received = np.empty_like(sent)
    gpu.download(buffer, received)
    gpu.synchronize()
    np.testing.assert_array_equal(received, sent)
    assert library.synchronized == 1


def test_what_is_captured_is_done_when_it_is_launched_and_each_time() -> None:
    library = HostDriver()
    gpu = Gpu(Driver(library))
    sent, received = np.zeros(3, np.float32), np.zeros(3, np.float32)
    buffer = gpu.allocate(sent.nbytes)

    def work() -> None:
        gpu.upload(sent, buffer)
        gpu.download(buffer, received)

    sent[:] = 7
    graph = gpu.capture(work)
    assert not received.any()
    for value in (1, 2):
        sent[:] = value
        graph.launch()
        assert (received == value).all()
    assert len(library.graphs) == 1
    del graph
    gc.collect()
    assert not library.graphs


def test_a_capture_that_fails_leaves_the_stream_as_it_was() -> None:
    library = HostDriver()
    gpu = Gpu(Driver(library))
    with pytest.raises(CudaError, match="cuMemAlloc_v2"):
        gpu.capture(lambda: print(gpu.allocate(8)))
    library.captures = False
    with pytest.raises(CudaError, match="cuStreamEndCapture"):
        gpu.capture(lambda: None)
    assert library.capturing is None
    assert not library.graphs
    gpu.synchronize()


def test_memory_is_freed_with_its_buffer() -> None:
    library = HostDriver()
    gpu = Gpu(Driver(library))
    buffer = gpu.allocate(0)
    assert buffer.address in library.memory
    del buffer
    gc.collect()
    assert not library.memory


def test_pinned_memory_is_freed_with_its_last_view() -> None:
    library = HostDriver()
    memory = Gpu(Driver(library)).pin(64)
    assert (memory.dtype.name, memory.nbytes) == ("uint8", 64)
    view = memory[8:16].view(np.float64)
    view[0] = 1.5
    assert memory.ctypes.data in library.memory
    del memory
    gc.collect()
    assert library.memory
    assert view[0] == 1.5
    del view
    gc.collect()
    assert not library.memory


def test_a_refused_call_says_the_drivers_name_for_it() -> None:
    gpu = Gpu(Driver(HostDriver(limit=8)))
    with pytest.raises(CudaError, match="cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"):
        gpu.allocate(9)
