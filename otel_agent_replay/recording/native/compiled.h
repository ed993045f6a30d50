/* What the files of the module `_compiled` have in common: what every call does with its bodies, in C.

   Whatever is here is in modules beside it too, in Python, which is what runs where this was not built. Both give the
   same, and tests hold them to each other; read the Python for what a step is for. */

#ifndef OTEL_AGENT_REPLAY_COMPILED
#define OTEL_AGENT_REPLAY_COMPILED

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef Py_ssize_t at_t;
typedef const unsigned char *bytes_t;

static inline at_t
least(at_t a, at_t b)
{
    return a < b ? a : b;
}

static inline at_t
most(at_t a, at_t b)
{
    return a > b ? a : b;
}

/* The first place of a byte from `begin` on, before `end`; or -1. */
static inline at_t
find(bytes_t body, int byte, at_t begin, at_t end)
{
    bytes_t found = begin < end ? memchr(body + begin, byte, end - begin) : NULL;
    return found == NULL ? -1 : found - body;
}

/* -- bodies.c: `alike` and `cuts` */

/* How many bytes, up to `limit`, two stretches have in common from two places on, or before two places. */
at_t start_alike(bytes_t one, bytes_t other, at_t limit);
at_t end_alike(bytes_t one, bytes_t other, at_t limit);

/* A quote that is not escaped: the last from `begin` on, or -1; the first before `end`, or `end`. */
at_t quote_before(bytes_t body, at_t begin, at_t at);
at_t quote_after(bytes_t body, at_t size, at_t at, at_t end);

typedef struct {
    bytes_t body;
    at_t begin, gap, at, end, quote, limit; /* `quote`: a long stretch that is being cut ends there; or -1 */
} Cuts;

Cuts cuts_of(bytes_t body, at_t at, at_t end);

/* Where the next piece ends; -1 where the last one did. */
at_t next_cut(Cuts *cuts);

/* -- checksum.c: CRC-32, going on from another; only where the processor helps it is fast */

int has_checksum(void);
uint32_t checksum(uint32_t value, bytes_t data, at_t length);

/* -- what Python calls */

PyObject *py_start_alike(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_end_alike(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_suspicious(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_attributes(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_headers(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_checksum(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_delimited(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

extern const char describe_doc[], suspicious_doc[], attributes_doc[], headers_doc[], checksum_doc[], delimited_doc[];

#endif
