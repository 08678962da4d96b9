// Access to Python's tensors through DLPack: the table of functions that torch.Tensor has for C libraries.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

struct Tensor {  // `DLTensor`
    void* data;
    int32_t device, device_number, ndim;
    uint8_t code, bits;  // of the type
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;  // in bytes
};

struct Table {  // `DLPackExchangeAPI`, version 1
    uint32_t major, minor;
    const Table* older;
    void *allocate, *own, *give;
    int (*look)(void* tensor, Tensor* to);
    void* stream;
};

struct Python {  // the functions that are needed, by address: the kernels are compiled without Python's headers
    const Table* tensors;
    void* (*item)(void* tuple, intptr_t i);  // PyTuple_GetItem
    void (*forget_error)();                  // PyErr_Clear
    void* (*leave)();                        // PyEval_SaveThread
    void (*come_back)(void*);                // PyEval_RestoreThread
};

// Tensor i of a tuple; false if it has no memory here.
static inline bool look(const Python& python, void* tuple, int64_t i, Tensor& x) {
    void* const tensor = python.item(tuple, i);
    if (tensor && python.tensors->look(tensor, &x) == 0)
        return x.device == 1 && x.data && x.strides;  // 1: CPU memory
    python.forget_error();
    return false;
}

template <class T>
static inline bool holds(const Tensor& x) {
    constexpr int code = std::is_floating_point<T>::value ? 2 : 0;  // a signed integer
    return x.code == code && x.bits == 8 * sizeof(T) && x.lanes == 1;
}

template <class T>
static inline T* address(const Tensor& x) {
    return reinterpret_cast<T*>(static_cast<char*>(x.data) + x.offset);
}

// Whether it has that shape and no gaps.
static inline bool has_shape(const Tensor& x, std::initializer_list<int64_t> shape) {
    if (x.ndim != static_cast<int64_t>(shape.size())) return false;
    int64_t step = 1;
    for (int64_t i = x.ndim - 1; i >= 0; i--) {
        const int64_t size = shape.begin()[i];
        if (x.shape[i] != size || (size != 1 && x.strides[i] != step)) return false;
        step *= size;
    }
    return true;
}
