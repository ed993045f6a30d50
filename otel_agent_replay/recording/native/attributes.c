/* Attributes of a span as protobuf: `layout`. */

#include "compiled.h"

/* -- attributes as protobuf ---------------------------------------------------------------------------- */

typedef struct {
    char *bytes;
    at_t count, room;
    char first[2048];
} Buffer;

static char *
more(Buffer *buffer, at_t count)
{
    if (buffer->count + count > buffer->room) {
        at_t room = 2 * (buffer->count + count);
        char *bytes = PyMem_Realloc(buffer->bytes == buffer->first ? NULL : buffer->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (buffer->bytes == buffer->first)
            memcpy(bytes, buffer->first, buffer->count);
        buffer->bytes = bytes;
        buffer->room = room;
    }
    buffer->count += count;
    return buffer->bytes + buffer->count - count;
}

static int
put(Buffer *buffer, const char *bytes, at_t count)
{
    char *place = more(buffer, count);
    if (place == NULL)
        return -1;
    memcpy(place, bytes, count);
    return 0;
}

static at_t
varint(char *out, uint64_t value)
{
    at_t count = 0;
    for (; value > 0x7F; value >>= 7)
        out[count++] = (char)(value | 0x80);
    out[count++] = (char)value;
    return count;
}

static int
put_length(Buffer *buffer, char tag, at_t length)
{
    char out[11] = {tag};
    return put(buffer, out, 1 + varint(out + 1, (uint64_t)length));
}

/* The AnyValue of a text or number of the usual kind, up to what stands in `text`; 0 where it is of another kind. */
static int
any_value(PyObject *value, char *out, at_t *count, const char **text, at_t *length)
{
    *length = 0;
    if (PyUnicode_CheckExact(value)) {
        *text = PyUnicode_AsUTF8AndSize(value, length);
        if (*text == NULL) {
            PyErr_Clear(); /* a lone surrogate */
            return 0;
        }
        out[0] = 0x0A;
        *count = 1 + varint(out + 1, (uint64_t)*length);
        return 1;
    }
    if (PyBool_Check(value)) {
        out[0] = 0x10;
        out[1] = value == Py_True;
        *count = 2;
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        out[0] = 0x18;
        *count = 1 + varint(out + 1, (uint64_t)number);
        return !overflow;
    }
    if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        uint64_t bits;
        memcpy(&bits, &number, 8);
        out[0] = 0x21;
        for (int byte = 0; byte < 8; byte++)
            out[1 + byte] = (char)(bits >> 8 * byte);
        *count = 9;
        return 1;
    }
    return 0;
}

static int
put_attribute(Buffer *buffer, PyObject *name, PyObject *value, PyObject *known, PyObject *tag, PyObject *whole)
{
    char held[16];
    const char *text = NULL, *key;
    at_t count, length, named;
    if (PyUnicode_CheckExact(name) && any_value(value, held, &count, &text, &length)) {
        at_t size = count + length;
        PyObject *place = PyDict_GetItemWithError(known, name);
        if (place != NULL && PyBytes_Check(place)) {
            char out[10];
            at_t digits = varint(out, (uint64_t)size);
            if (put(buffer, PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag)) < 0)
                return -1;
            char total[10];
            at_t all = varint(total, (uint64_t)(PyBytes_GET_SIZE(place) + digits + size));
            if (put(buffer, total, all) < 0 || put(buffer, PyBytes_AS_STRING(place), PyBytes_GET_SIZE(place)) < 0
                || put(buffer, out, digits) < 0)
                return -1;
            return put(buffer, held, count) < 0 || put(buffer, text, length) < 0 ? -1 : 0;
        }
        if (PyErr_Occurred())
            return -1;
        key = PyUnicode_AsUTF8AndSize(name, &named);
        if (key != NULL) {
            char out[10];
            at_t before = 2 + varint(out, (uint64_t)named) + named + varint(out, (uint64_t)size);
            if (put_length(buffer, 0x4A, before + size) < 0 || put_length(buffer, 0x0A, named) < 0
                || put(buffer, key, named) < 0 || put_length(buffer, 0x12, size) < 0)
                return -1;
            return put(buffer, held, count) < 0 || put(buffer, text, length) < 0 ? -1 : 0;
        }
        PyErr_Clear();
    }
    PyObject *made = PyObject_CallFunctionObjArgs(whole, name, value, NULL);
    int failed = made == NULL || !PyBytes_Check(made)
                 || put(buffer, PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made)) < 0;
    if (made != NULL && !PyBytes_Check(made))
        PyErr_SetString(PyExc_TypeError, "an attribute is bytes");
    Py_XDECREF(made);
    return failed ? -1 : 0;
}

const char attributes_doc[] =
    "attributes(attributes, but, known, tag, whole) -> bytes\n\n"
    "Attributes as fields of a span, but for those whose name is among `but`. `known`: how\n"
    "common names are written, in fields that begin with `tag`; `whole(name, value)` writes\n"
    "what is of no usual kind.";

PyObject *
py_attributes(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyDict_Check(args[0]) || !PyDict_Check(args[2]) || !PyBytes_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "attributes() takes a dict, a set, a dict, bytes and a function");
        return NULL;
    }
    Buffer buffer;
    buffer.bytes = buffer.first;
    buffer.count = 0;
    buffer.room = sizeof(buffer.first);
    PyObject *name, *value, *made = NULL;
    at_t position = 0;
    int failed = 0;
    while (!failed && PyDict_Next(args[0], &position, &name, &value)) {
        int left_out = PySet_Contains(args[1], name);
        if (left_out < 0)
            failed = 1;
        if (left_out)
            continue;
        Py_INCREF(name);
        Py_INCREF(value);
        failed = put_attribute(&buffer, name, value, args[2], args[3], args[4]) < 0;
        Py_DECREF(name);
        Py_DECREF(value);
    }
    if (!failed)
        made = PyBytes_FromStringAndSize(buffer.bytes, buffer.count);
    if (buffer.bytes != buffer.first)
        PyMem_Free(buffer.bytes);
    return made;
}
