"""Kernels for the CPU: C++ that the user's own compiler builds once; imported only where an op uses them."""
