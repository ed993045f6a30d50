/* Whether a stretch of bytes may hold a credential: `mask_rules`. */

#include "compiled.h"

/* -- what may be a credential -------------------------------------------------------------------------- */

#define FEW_PLACES 60

static inline int
is_one_of(const char *some, int byte)
{
    return byte && strchr(some, byte) != NULL;
}

static inline int
is_alphanumeric(int byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

/* Whether the pattern of `mask_rules` that begins with a byte may match where that byte stands: it is not asked where
   it cannot. Bytes before and after are 0 where there are none. */
static int
may_begin(bytes_t data, at_t size, at_t at)
{
#define BEFORE(count) (at >= (count) ? data[at - (count)] : 0)
#define AFTER(count) (at + (count) < size ? data[at + (count)] : 0)
    switch (data[at]) {
    case '-':
        return (BEFORE(1) == 'k' && BEFORE(2) == 's') || (BEFORE(2) == 'x' && BEFORE(3) == 'o' && BEFORE(4) == 'x')
               || (BEFORE(1) == 't' && BEFORE(5) == 'g') || (AFTER(1) == '-' && AFTER(2) == '-');
    case '_': {
        if ((AFTER(1) == 'l' && AFTER(4) == 'e') || (AFTER(1) == 't' && AFTER(4) == 't'))
            return 1;
        at_t run = 1;
        while (run <= 16 && is_alphanumeric(AFTER(run)))
            run++;
        return run > 16;
    }
    case 'A':
        return (AFTER(2) == 'I' && AFTER(3) == 'A') || (AFTER(1) == 'I' && AFTER(2) == 'z');
    case 'J':
        return BEFORE(1) == 'y' && BEFORE(2) == 'e';
    case 'G':
        return BEFORE(1) == 'S' && AFTER(1) == '.';
    case 'B':
        return (AFTER(1) | 0x20) == 'e';
    case '=':
        return is_one_of("DESTYN", BEFORE(1));
    case '"':
        return is_one_of("AaPpCcXxRrIiHhSsOoQq", AFTER(1)) && is_one_of("UuPpCcNnWwRrAaOoLlEeDdTt_-", AFTER(2))
               && is_one_of("TtIiCcSsOoAaGgFfEe_-", AFTER(3));
    case '\\':
        return AFTER(1) == 'u' && AFTER(2) == '0' && AFTER(3) == '0';
    case '$':
        return AFTER(1) == '"' || AFTER(1) == '\\';
    case ':':
        return AFTER(1) == '/' || AFTER(1) == '\\';
    default:
        return 1;
    }
#undef BEFORE
#undef AFTER
}

static int
says_yes(PyObject *function, PyObject *data, at_t at, PyObject *end)
{
    PyObject *begin = PyLong_FromSsize_t(at), *found = NULL;
    if (begin != NULL)
        found = PyObject_CallFunctionObjArgs(function, data, begin, end, NULL);
    int yes = found == NULL ? -1 : found != Py_None;
    Py_XDECREF(begin);
    Py_XDECREF(found);
    return yes;
}

typedef unsigned char Block __attribute__((vector_size(16)));

/* 255 where a byte stands, of 16 of them. */
static inline Block
where(bytes_t data, unsigned char byte)
{
    Block block;
    memcpy(&block, data, sizeof(block));
    return (Block)(block == byte);
}

/* Whether a word of two bytes or more stands in the data: 16 places at a time are looked at for its first and last. */
static int
has_word(bytes_t data, at_t size, bytes_t word, at_t length)
{
    at_t at = 0, blocks = size - length - (at_t)sizeof(Block) + 1;
    for (; at <= blocks; at += (at_t)sizeof(Block)) {
        Block both = where(data + at, word[0]) & where(data + at + length - 1, word[length - 1]);
        uint64_t halves[2];
        memcpy(halves, &both, sizeof(halves));
        if ((halves[0] | halves[1]) && memmem(data + at, sizeof(Block) + length - 1, word, length) != NULL)
            return 1;
    }
    return size - at >= length && memmem(data + at, size - at, word, length) != NULL;
}

const char suspicious_doc[] =
    "suspicious(patterns, word, data, start, end) -> bool\n\n"
    "As `mask_rules.suspicious`. `patterns`: for each, the byte that it begins with, and its\n"
    "`match` and `search`.";

PyObject *
py_suspicious(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyTuple_Check(args[0]) || !PyBytes_Check(args[1]) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "suspicious() takes a tuple of patterns, bytes, bytes and two offsets");
        return NULL;
    }
    at_t start = PyLong_AsSsize_t(args[3]), end = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    bytes_t data = (bytes_t)PyBytes_AS_STRING(args[2]);
    start = most(start, 0);
    end = least(end, PyBytes_GET_SIZE(args[2]));
    if (start >= end)
        Py_RETURN_FALSE;
    for (at_t index = 0; index < PyTuple_GET_SIZE(args[0]); index++) {
        PyObject *pattern = PyTuple_GET_ITEM(args[0], index);
        if (!PyTuple_Check(pattern) || PyTuple_GET_SIZE(pattern) != 3) {
            PyErr_SetString(PyExc_TypeError, "a pattern is a byte and two functions");
            return NULL;
        }
        PyObject *match = PyTuple_GET_ITEM(pattern, 1), *search = PyTuple_GET_ITEM(pattern, 2);
        int anchor = (int)PyLong_AsLong(PyTuple_GET_ITEM(pattern, 0)), places = 0;
        if (anchor == -1 && PyErr_Occurred())
            return NULL;
        if (anchor == ':' && find(data, '@', start, end) < 0)
            continue; /* no password in a URL */
        for (at_t at = find(data, anchor, start, end); at >= 0; at = find(data, anchor, at + 1, end)) {
            if (!may_begin(data, PyBytes_GET_SIZE(args[2]), at))
                continue;
            int many = ++places > FEW_PLACES, yes = says_yes(many ? search : match, args[2], at, args[4]);
            if (yes < 0)
                return NULL;
            if (yes)
                Py_RETURN_TRUE;
            if (many)
                break;
        }
    }
    return PyBool_FromLong(
        has_word(data + start, end - start, (bytes_t)PyBytes_AS_STRING(args[1]), PyBytes_GET_SIZE(args[1])));
}
