/* Headers as JSON: `payload.flattened`. */

#include "compiled.h"

/* What a text takes in JSON, its quotes too; -1 where it holds what JSON writes in another way than as it is, but for
   quotes and backslashes. */
static at_t
size_in_json(const char *text, at_t length)
{
    at_t size = length + 2;
    for (at_t at = 0; at < length; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (byte < 0x20)
            return -1;
        size += byte == '"' || byte == '\\';
    }
    return size;
}

static char *
put_text(char *out, const char *text, at_t length, at_t size)
{
    *out++ = '"';
    if (size == length + 2) {
        memcpy(out, text, length);
        out += length;
    }
    else
        for (at_t at = 0; at < length; at++) {
            if (text[at] == '"' || text[at] == '\\')
                *out++ = '\\';
            *out++ = text[at];
        }
    *out++ = '"';
    return out;
}

static int
is_content_length(const char *name, at_t length)
{
    static const char wanted[] = "content-length";
    if (length != sizeof(wanted) - 1)
        return 0;
    for (at_t at = 0; at < length; at++)
        if ((name[at] | (name[at] >= 'A' && name[at] <= 'Z' ? 0x20 : 0)) != wanted[at])
            return 0;
    return 1;
}

typedef struct {
    const char *text;
    at_t length, size; /* size 0: null */
} Text;

/* 0 where the object is no usual text. */
static int
read_text(PyObject *object, Text *text)
{
    if (!PyUnicode_CheckExact(object))
        return 0;
    text->text = PyUnicode_AsUTF8AndSize(object, &text->length);
    if (text->text == NULL) {
        PyErr_Clear(); /* a lone surrogate */
        return 0;
    }
    text->size = size_in_json(text->text, text->length);
    return text->size >= 0;
}

#define MOST_HEADERS 256

/* The texts of a URL, unless it is None, and of pairs of name and value; how many, 0 where they are not as usual. */
static at_t
read_texts(PyObject *url, PyObject *headers, Text *texts, const char *size, at_t digits)
{
    at_t count = 0;
    if (url != Py_None && !read_text(url, &texts[count++]))
        return 0;
    for (at_t index = 0; index < PyList_GET_SIZE(headers); index++) {
        PyObject *pair = PyList_GET_ITEM(headers, index);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2)
            return 0;
        Text *name = &texts[count++], *value = &texts[count++];
        if (!read_text(PyTuple_GET_ITEM(pair, 0), name) || !read_text(PyTuple_GET_ITEM(pair, 1), value))
            return 0;
        if (value->length == digits && memcmp(value->text, size, digits) == 0
            && is_content_length(name->text, name->length))
            value->size = 0;
    }
    return count;
}

const char headers_doc[] =
    "headers(url, headers, size) -> bytes or None\n\n"
    "The JSON of `payload.flattened`, `size` being the text of the length; None where something\n"
    "is not as usual.";

PyObject *
py_headers(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Text texts[1 + 2 * MOST_HEADERS];
    at_t digits;
    if (nargs != 3 || !PyUnicode_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "headers() takes a URL or None, a list and a text");
        return NULL;
    }
    const char *size = PyUnicode_AsUTF8AndSize(args[2], &digits);
    if (size == NULL)
        return NULL;
    if (!PyList_CheckExact(args[1]) || PyList_GET_SIZE(args[1]) > MOST_HEADERS)
        Py_RETURN_NONE;
    at_t count = read_texts(args[0], args[1], texts, size, digits), whole = 1;
    if (count == 0)
        Py_RETURN_NONE;
    for (at_t index = 0; index < count; index++)
        whole += 1 + (texts[index].size ? texts[index].size : 4);
    PyObject *made = PyBytes_FromStringAndSize(NULL, whole);
    if (made == NULL)
        return NULL;
    char *out = PyBytes_AS_STRING(made);
    for (at_t index = 0; index < count; index++) {
        *out++ = index ? ',' : '[';
        if (texts[index].size)
            out = put_text(out, texts[index].text, texts[index].length, texts[index].size);
        else {
            memcpy(out, "null", 4);
            out += 4;
        }
    }
    *out = ']';
    return made;
}
