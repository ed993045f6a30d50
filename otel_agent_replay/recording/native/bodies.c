/* How much two bodies have in common, and where a body is cut: `alike` and `cuts`. */

#include "compiled.h"

#define LONG 256
#define LARGEST (1 << 20)
#define BLOCK 4096

/* -- how much two stretches have in common ------------------------------------------------------------- */

at_t
start_alike(bytes_t one, bytes_t other, at_t limit)
{
    at_t same = 0;
    while (limit - same >= BLOCK && memcmp(one + same, other + same, BLOCK) == 0)
        same += BLOCK;
    while (limit - same >= 8 && memcmp(one + same, other + same, 8) == 0)
        same += 8;
    while (same < limit && one[same] == other[same])
        same++;
    return same;
}

/* The same for what stands before the two places. */
at_t
end_alike(bytes_t one, bytes_t other, at_t limit)
{
    at_t same = 0;
    while (limit - same >= BLOCK && memcmp(one - same - BLOCK, other - same - BLOCK, BLOCK) == 0)
        same += BLOCK;
    while (limit - same >= 8 && memcmp(one - same - 8, other - same - 8, 8) == 0)
        same += 8;
    while (same < limit && one[-same - 1] == other[-same - 1])
        same++;
    return same;
}

/* -- where bodies are cut ------------------------------------------------------------------------------ */

static at_t
find_last(bytes_t body, int byte, at_t begin, at_t end)
{
    while (end > begin)
        if (body[--end] == byte)
            return end;
    return -1;
}

static int
escaped(bytes_t body, at_t quote)
{
    at_t at = quote;
    while (at > 0 && body[at - 1] == '\\')
        at--;
    return (quote - at) % 2 == 1;
}

at_t
quote_before(bytes_t body, at_t begin, at_t at)
{
    at_t quote = find_last(body, '"', begin, at);
    while (quote > begin && escaped(body, quote))
        quote = find_last(body, '"', begin, quote);
    return quote;
}

at_t
quote_after(bytes_t body, at_t size, at_t at, at_t end)
{
    at_t quote = find(body, '"', at, least(end, size));
    while (quote > 0 && escaped(body, quote))
        quote = find(body, '"', quote + 1, least(end, size));
    return quote < 0 ? end : quote;
}

static at_t
whole_character(bytes_t body, at_t at)
{
    for (int back = 0; back < 4; back++)
        if ((body[at - back] & 0xC0) != 0x80)
            return at - back;
    return at;
}

Cuts
cuts_of(bytes_t body, at_t at, at_t end)
{
    at_t size = (end - at) >> 10, limit = 1;
    for (; size; size >>= 1)
        limit <<= 1;
    return (Cuts){body, at, at, at, end, -1, most(LONG, limit)};
}

at_t
next_cut(Cuts *cuts)
{
    bytes_t body = cuts->body;
    for (;;) {
        at_t quote = cuts->quote;
        if (quote < 0) {
            if (cuts->begin >= cuts->end)
                return -1;
            quote = find(body, '"', cuts->at, cuts->end);
            if (quote < 0)
                quote = cuts->end;
            else if (escaped(body, quote)) {
                cuts->at = quote + 1;
                continue;
            }
            if (quote - cuts->gap >= cuts->limit) {
                cuts->quote = quote;
                if (cuts->gap > cuts->begin)
                    return cuts->begin = cuts->gap;
            }
            else if (quote == cuts->end)
                return cuts->begin = cuts->end;
        }
        at_t cut = -1;
        if (cuts->quote >= 0) {
            if (quote - cuts->begin > LARGEST)
                return cuts->begin = whole_character(body, cuts->begin + LARGEST);
            cuts->quote = -1;
            cut = cuts->begin = quote;
        }
        else if (quote - cuts->begin >= 2 * cuts->limit) {
            at_t brace = find_last(body, '}', quote - 4, quote);
            if (brace > cuts->begin)
                cut = cuts->begin = brace + 1;
            else if (quote - cuts->begin >= LARGEST / 2)
                cut = cuts->begin = quote;
        }
        cuts->gap = cuts->at = quote + 1;
        if (cut >= 0)
            return cut;
    }
}

/* -- what two bodies have in common, for others than descriptions ---------------------------------------- */

static PyObject *
py_alike(PyObject *const *args, Py_ssize_t nargs, int backwards)
{
    if (nargs != 5 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "it takes a body, a place, another body, a place in it and a limit");
        return NULL;
    }
    at_t at = PyLong_AsSsize_t(args[1]), other = PyLong_AsSsize_t(args[3]), limit = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    at_t size = PyBytes_GET_SIZE(args[0]), other_size = PyBytes_GET_SIZE(args[2]);
    at_t room = backwards ? least(at, other) : least(size - at, other_size - other);
    if (at < 0 || other < 0 || at > size || other > other_size || limit > room) {
        PyErr_SetString(PyExc_ValueError, "there is not so much of both bodies");
        return NULL;
    }
    bytes_t one = (bytes_t)PyBytes_AS_STRING(args[0]) + at, two = (bytes_t)PyBytes_AS_STRING(args[2]) + other;
    return PyLong_FromSsize_t(backwards ? end_alike(one, two, limit) : start_alike(one, two, limit));
}

PyObject *
py_start_alike(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return py_alike(args, nargs, 0);
}

PyObject *
py_end_alike(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return py_alike(args, nargs, 1);
}
