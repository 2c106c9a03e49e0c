"""A driver that is made up: the part of `pynvml` that a probe may ask."""

import types


class NVMLError(Exception):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class FakeDriver:
    """A handle is the index of a GPU, or with it that of an instance.

    Args:
        gpus: (UUID, compute capability, bytes) of each; None: the driver is not loaded.
        instances: UUID -> place -> (UUID, bytes) of its instances; a GPU without an entry cannot
            have any.
        versions: of the driver, and 13000 for CUDA 13.0.
    """

    NVMLError = NVMLError
    NVMLError_NotFound = NVMLError_NotFound

    def __init__(self, gpus, instances=None, versions=("580.95.05", 13000)):
        self.gpus, self.instances, self.versions = gpus, instances or {}, versions
        self.num_open = 0

    def nvmlInit(self):
        if self.gpus is None:
            raise NVMLError("Driver Not Loaded")
        self.num_open += 1

    def nvmlShutdown(self):
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self):
        return self.versions[0]

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self.versions[1]

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self._facts(handle)[0]

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return self.gpus[handle][1]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=self._facts(handle)[-1])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        if self.gpus[handle][0] not in self.instances:
            raise NVMLError_NotSupported("Not Supported")
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index not in self.instances[self.gpus[handle][0]]:
            raise NVMLError_NotFound("Not Found")
        return handle, index

    def _facts(self, handle):
        if isinstance(handle, tuple):
            return self.instances[self.gpus[handle[0]][0]][handle[1]]
        return self.gpus[handle]
