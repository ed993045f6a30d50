/* The checksum of a frame: CRC-32 as `zlib.crc32` gives it, by carry-less multiplication where the processor has it.

   A table would push as much of the program out of the cache as the frame itself. Source: V. Gopal and others, "Fast CRC
   computation for generic polynomials using PCLMULQDQ instruction", Intel, 2009, sections 3 and 4, bits reflected. */

#include "compiled.h"

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define FOLDS 1
#include <immintrin.h>
#else
#define FOLDS 0
#endif

/* Bit by bit, for the few bytes that make up no block. */
static uint32_t
slow(uint32_t crc, bytes_t data, at_t length)
{
    while (length-- > 0) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xEDB88320 & -(crc & 1));
    }
    return crc;
}

#if FOLDS

#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i
load(bytes_t data)
{
    return _mm_loadu_si128((const __m128i *)data);
}

/* A block moved on by as many bits as the powers stand for, into another. */
FOLDING static inline __m128i
fold(__m128i block, __m128i powers, __m128i into)
{
    __m128i low = _mm_clmulepi64_si128(block, powers, 0x00), high = _mm_clmulepi64_si128(block, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), into);
}

/* Of 64 bytes or more, a multiple of 16. */
FOLDING static uint32_t
folded(uint32_t crc, bytes_t data, at_t length)
{
    const __m128i far = _mm_set_epi64x(0x1C6E41596, 0x154442BD4); /* x to the 512 - 32 and the 512 + 32, modulo P */
    const __m128i near = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0); /* x to the 128 - 32 and the 128 + 32 */
    const __m128i half = _mm_set_epi64x(0, 0x163CD6124);           /* x to the 64 */
    const __m128i reduce = _mm_set_epi64x(0x1F7011641, 0x1DB710641); /* x to the 64 divided by P, and P */
    const __m128i words = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
        a = fold(a, far, load(data));
        b = fold(b, far, load(data + 16));
        c = fold(c, far, load(data + 32));
        d = fold(d, far, load(data + 48));
    }
    a = fold(fold(fold(a, near, b), near, c), near, d);
    for (; length >= 16; data += 16, length -= 16)
        a = fold(a, near, load(data));
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, near, 0x10), _mm_srli_si128(a, 8));
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, words), half, 0x00), _mm_srli_si128(a, 4));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, words), reduce, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, words), reduce, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

#endif

int
has_checksum(void)
{
#if FOLDS
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#else
    return 0;
#endif
}

uint32_t
checksum(uint32_t value, bytes_t data, at_t length)
{
    uint32_t crc = ~value;
#if FOLDS
    at_t blocks = length >= 64 ? length / 16 * 16 : 0;
    if (blocks)
        crc = folded(crc, data, blocks);
    data += blocks;
    length -= blocks;
#endif
    return ~slow(crc, data, length);
}

const char checksum_doc[] =
    "checksum(data, value) -> int or None\n\n"
    "As `zlib.crc32`; None where the processor does not help.";

PyObject *
py_checksum(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "checksum() takes bytes and a number");
        return NULL;
    }
    unsigned long value = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (!has_checksum())
        Py_RETURN_NONE;
    bytes_t data = (bytes_t)PyBytes_AS_STRING(args[0]);
    return PyLong_FromUnsignedLong(checksum((uint32_t)value, data, PyBytes_GET_SIZE(args[0])));
}
