"""Triton kernels for GPUs, imported when they are first used; under TRITON_INTERPRET=1 they also run on the CPU."""
