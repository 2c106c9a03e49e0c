"""The ops, over `torch.ops.npu`: to call them takes an NPU or its emulation, to import nothing."""
