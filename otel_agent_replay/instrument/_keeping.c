/* Readings of a clock that is read often, without a step of the interpreter.

   What `_kept` does where a frame remembers where its values wait to be written, and no more: whoever reads anew, or
   in another way, is handed to the function in Python that does the whole. Whether this part was built changes what
   a reading costs and nothing else.

   Between the look and the append nothing else may run. The frame and the key are made before it; the clock is read
   by a built-in function that runs no Python and keeps the interpreter's lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *dict;
    PyObject *original; /* reads the clock, given nothing or `zone` */
    PyObject *memo;     /* the class of what a frame remembers */
    PyObject *whole;    /* does everything else */
    PyObject *write;    /* writes what waits */
    PyObject *cls;      /* the only class whose time it is; NULL where it is no method of a class */
    PyObject *zone;     /* the only time zone besides None */
    long offset;
    long offset_with_zone;
    Py_ssize_t full;
} Reader;

static getter trace_of; /* of a frame, as `frame.f_trace` */

/* The values of the frame that reads, borrowed from what it remembers; NULL, with no error set, where it has none. */
static PyObject *
remembered(Reader *self, long offset)
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *memo = trace_of((PyObject *)frame, NULL);
    if (memo == NULL || (PyObject *)Py_TYPE(memo) != self->memo) {
        PyErr_Clear();
        Py_XDECREF(memo);
        return NULL;
    }
    PyObject *found = NULL, *key = PyLong_FromLong(PyFrame_GetLasti(frame) + offset);
    if (key != NULL) {
        found = PyDict_GetItemWithError(memo, key);
        Py_DECREF(key);
    }
    PyErr_Clear();
    Py_DECREF(memo); /* the frame holds it */
    return found != NULL && PyList_CheckExact(found) ? found : NULL;
}

static PyObject *
kept(Reader *self, PyObject *values, PyObject *zone)
{
    Py_INCREF(values);
    PyObject *value = zone == NULL ? PyObject_CallNoArgs(self->original) : PyObject_CallOneArg(self->original, zone);
    if (value != NULL && PyList_Append(values, value) < 0) {
        Py_CLEAR(value);
    }
    Py_ssize_t waiting = PyList_GET_SIZE(values);
    Py_DECREF(values);
    if (value != NULL && waiting >= self->full) {
        PyObject *done = PyObject_CallNoArgs(self->write);
        if (done == NULL) {
            Py_CLEAR(value);
        }
        Py_XDECREF(done);
    }
    return value;
}

/* A function that takes nothing, called with what it is bound to, or as a stand calls it, with nothing at all. */
static PyObject *
read_number(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Reader *self = (Reader *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    if (given > 1 || (names != NULL && PyTuple_GET_SIZE(names) > 0)) {
        return PyObject_Vectorcall(self->whole, args, nargsf, names);
    }
    PyObject *values = remembered(self, self->offset);
    return values == NULL ? PyObject_CallOneArg(self->whole, Py_None) : kept(self, values, NULL);
}

/* `datetime.now`, called with the class. */
static PyObject *
read_time(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Reader *self = (Reader *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    PyObject *zone = given == 2 ? args[1] : Py_None;
    if (given >= 1 && given <= 2 && args[0] == self->cls && (zone == Py_None || zone == self->zone)
        && (names == NULL || PyTuple_GET_SIZE(names) == 0)) {
        PyObject *values = remembered(self, zone == Py_None ? self->offset : self->offset_with_zone);
        if (values != NULL) {
            return kept(self, values, zone);
        }
    }
    return PyObject_Vectorcall(self->whole, args, nargsf, names);
}

static int
traverse(Reader *self, visitproc visit, void *arg)
{
    Py_VISIT(self->dict);
    Py_VISIT(self->original);
    Py_VISIT(self->memo);
    Py_VISIT(self->whole);
    Py_VISIT(self->write);
    Py_VISIT(self->cls);
    Py_VISIT(self->zone);
    return 0;
}

static int
clear(Reader *self)
{
    Py_CLEAR(self->dict);
    Py_CLEAR(self->original);
    Py_CLEAR(self->memo);
    Py_CLEAR(self->whole);
    Py_CLEAR(self->write);
    Py_CLEAR(self->cls);
    Py_CLEAR(self->zone);
    return 0;
}

static void
dealloc(Reader *self)
{
    PyObject_GC_UnTrack(self);
    clear(self);
    PyObject_GC_Del(self);
}

static PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject ReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "otel_agent_replay.instrument._keeping.Reader",
    .tp_doc = "A function that reads a clock and keeps what it gives.",
    .tp_basicsize = sizeof(Reader),
    .tp_dealloc = (destructor)dealloc,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_vectorcall_offset = offsetof(Reader, call),
    .tp_call = PyVectorcall_Call,
    .tp_getset = attributes,
    .tp_dictoffset = offsetof(Reader, dict),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
};

static Reader *
made(PyObject *original, PyObject *memo, PyObject *whole, PyObject *write, long offset, Py_ssize_t full)
{
    Reader *self = PyObject_GC_New(Reader, &ReaderType);
    if (self == NULL) {
        return NULL;
    }
    self->call = read_number;
    self->dict = self->cls = self->zone = NULL;
    self->original = Py_NewRef(original);
    self->memo = Py_NewRef(memo);
    self->whole = Py_NewRef(whole);
    self->write = Py_NewRef(write);
    self->offset = self->offset_with_zone = offset;
    self->full = full;
    PyObject_GC_Track(self);
    return self;
}

static PyObject *
numbers(PyObject *module, PyObject *args)
{
    PyObject *original, *memo, *whole, *write;
    long offset;
    Py_ssize_t full;
    if (!PyArg_ParseTuple(args, "OO!OOln", &original, &PyType_Type, &memo, &whole, &write, &offset, &full)) {
        return NULL;
    }
    return (PyObject *)made(original, memo, whole, write, offset, full);
}

static PyObject *
times(PyObject *module, PyObject *args)
{
    PyObject *original, *memo, *whole, *write, *cls, *zone;
    long offset, offset_with_zone;
    Py_ssize_t full;
    if (!PyArg_ParseTuple(args, "OO!OOllnO!O", &original, &PyType_Type, &memo, &whole, &write, &offset,
                          &offset_with_zone, &full, &PyType_Type, &cls, &zone)) {
        return NULL;
    }
    Reader *self = made(original, memo, whole, write, offset, full);
    if (self != NULL) {
        self->call = read_time;
        self->offset_with_zone = offset_with_zone;
        self->cls = Py_NewRef(cls);
        self->zone = Py_NewRef(zone);
    }
    return (PyObject *)self;
}

static PyMethodDef functions[] = {
    {"numbers", numbers, METH_VARARGS,
     "numbers(original, memo, whole, write, offset, full)\n--\n\nThe replacement of a function that takes nothing."},
    {"times", times, METH_VARARGS,
     "times(original, memo, whole, write, offset, offset_with_zone, full, cls, zone)\n--\n\n"
     "The replacement of `datetime.now`."},
    {NULL, NULL, 0, NULL},
};

static int
exec_module(PyObject *module)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)&PyFrame_Type, "f_trace");
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
        Py_XDECREF(descriptor);
        PyErr_SetString(PyExc_ImportError, "frames of this interpreter are not as they are known to be");
        return -1;
    }
    trace_of = ((PyGetSetDescrObject *)descriptor)->d_getset->get;
    Py_DECREF(descriptor); /* its type holds it */
    return PyType_Ready(&ReaderType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, exec_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "otel_agent_replay.instrument._keeping",
    .m_doc = "The part of `_kept` that is called most often.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__keeping(void)
{
    return PyModuleDef_Init(&definition);
}
