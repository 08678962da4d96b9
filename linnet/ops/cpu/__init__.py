"""Kernels for the CPU: C++, prebuilt in a wheel or compiled once on first use. Imported only when an op uses them."""
