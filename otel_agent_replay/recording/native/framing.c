/* A span with its length, mark and checksum before it: `layout.delimited`. */

#include "compiled.h"

enum { MARK_SIZE = 4, CHECKSUM_SIZE = 4 };

/* How long the varint of a number is. */
static at_t
digits_of(uint64_t value)
{
    at_t count = 1;
    for (; value > 0x7F; value >>= 7)
        count++;
    return count;
}

static char *
put_number(char *out, uint64_t value)
{
    for (; value > 0x7F; value >>= 7)
        *out++ = (char)(value | 0x80);
    *out++ = (char)value;
    return out;
}

/* The number that a part stands for; 0 where it is none of 64 bits, with an exception set. */
static uint64_t
number_of(PyObject *part)
{
    if (!PyLong_CheckExact(part)) {
        PyErr_SetString(PyExc_TypeError, "a part is bytes or a number");
        return 0;
    }
    return PyLong_AsUnsignedLongLong(part);
}

/* What the parts take together; -1 where one is no part. */
static at_t
size_of(PyObject *parts)
{
    at_t size = 0;
    for (at_t index = 0; index < PyList_GET_SIZE(parts); index++) {
        PyObject *part = PyList_GET_ITEM(parts, index);
        size += PyBytes_CheckExact(part) ? PyBytes_GET_SIZE(part) : digits_of(number_of(part));
        if (PyErr_Occurred())
            return -1;
    }
    return size;
}

const char delimited_doc[] =
    "delimited(parts, mark, most) -> bytes or None\n\n"
    "The parts, bytes or numbers that are written as varints, as one frame; None where they take\n"
    "`most` bytes or more, or the processor makes no checksum.";

PyObject *
py_delimited(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_CheckExact(args[0]) || !PyBytes_CheckExact(args[1])
        || PyBytes_GET_SIZE(args[1]) != MARK_SIZE) {
        PyErr_SetString(PyExc_TypeError, "delimited() takes a list, four bytes and a number");
        return NULL;
    }
    at_t most = PyLong_AsSsize_t(args[2]), size = PyErr_Occurred() ? -1 : size_of(args[0]);
    if (size < 0)
        return NULL;
    if (size >= most || !has_checksum())
        Py_RETURN_NONE;
    uint64_t counted = (uint64_t)(size + MARK_SIZE + CHECKSUM_SIZE);
    at_t before = digits_of(counted) + MARK_SIZE + CHECKSUM_SIZE;
    PyObject *made = PyBytes_FromStringAndSize(NULL, before + size);
    if (made == NULL)
        return NULL;
    char *begin = PyBytes_AS_STRING(made), *out = begin + before;
    for (at_t index = 0; index < PyList_GET_SIZE(args[0]); index++) {
        PyObject *part = PyList_GET_ITEM(args[0], index);
        if (PyBytes_CheckExact(part)) {
            memcpy(out, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part));
            out += PyBytes_GET_SIZE(part);
        }
        else
            out = put_number(out, PyLong_AsUnsignedLongLong(part));
    }
    uint32_t sum = checksum(0, (bytes_t)begin + before, size);
    out = put_number(begin, counted);
    memcpy(out, PyBytes_AS_STRING(args[1]), MARK_SIZE);
    for (int byte = 0; byte < CHECKSUM_SIZE; byte++)
        out[MARK_SIZE + byte] = (char)(sum >> 8 * byte);
    return made;
}
