"""Kernels for the CPU: C++ that the user's own compiler builds once. Imported only when an op uses them."""
