/* The module `_compiled`. */

#include "compiled.h"

static PyMethodDef functions[] = {
    {"describe", (PyCFunction)(void (*)(void))py_describe, METH_FASTCALL, describe_doc},
    {"start_alike", (PyCFunction)(void (*)(void))py_start_alike, METH_FASTCALL, "As `alike.start_alike`."},
    {"end_alike", (PyCFunction)(void (*)(void))py_end_alike, METH_FASTCALL, "As `alike.end_alike`."},
    {"suspicious", (PyCFunction)(void (*)(void))py_suspicious, METH_FASTCALL, suspicious_doc},
    {"attributes", (PyCFunction)(void (*)(void))py_attributes, METH_FASTCALL, attributes_doc},
    {"headers", (PyCFunction)(void (*)(void))py_headers, METH_FASTCALL, headers_doc},
    {"checksum", (PyCFunction)(void (*)(void))py_checksum, METH_FASTCALL, checksum_doc},
    {"delimited", (PyCFunction)(void (*)(void))py_delimited, METH_FASTCALL, delimited_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "otel_agent_replay.recording._compiled",
    .m_doc = "What every call does with its bodies.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    return PyModuleDef_Init(&definition);
}
