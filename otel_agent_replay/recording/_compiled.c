/* What every call does with its bodies, without the interpreter: `alike`, `cuts` and `rope` once more, in C.

   Whatever is here is in those modules too, in Python, which is what runs where this was not built. Both give the
   same, and tests hold them to each other; read the Python for what a step is for. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef Py_ssize_t at_t;
typedef const unsigned char *bytes_t;

#define INLINE 160
#define SLICE 24
#define SHORT 10
#define BESIDE 8
#define HEAD 48
#define MISSES 64
#define FINE 8192
#define FEW 4
#define LONG 256
#define LARGEST (1 << 20)
#define BLOCK 4096

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

/* -- how much two stretches have in common ------------------------------------------------------------- */

static at_t
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
static at_t
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
find(bytes_t body, int byte, at_t begin, at_t end)
{
    bytes_t found = begin < end ? memchr(body + begin, byte, end - begin) : NULL;
    return found == NULL ? -1 : found - body;
}

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

static at_t
quote_before(bytes_t body, at_t begin, at_t at)
{
    at_t quote = find_last(body, '"', begin, at);
    while (quote > begin && escaped(body, quote))
        quote = find_last(body, '"', begin, quote);
    return quote;
}

static at_t
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

typedef struct {
    bytes_t body;
    at_t begin, gap, at, end, quote, limit; /* `quote`: a long stretch that is being cut ends there; or -1 */
} Cuts;

static Cuts
cuts_of(bytes_t body, at_t at, at_t end)
{
    at_t size = (end - at) >> 10, limit = 1;
    for (; size; size >>= 1)
        limit <<= 1;
    return (Cuts){body, at, at, at, end, -1, most(LONG, limit)};
}

/* Where the next piece ends; -1 where the last one did. */
static at_t
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

/* -- a growing row of places --------------------------------------------------------------------------- */

typedef struct {
    int64_t *items;
    at_t count, room;
} Places;

static int
add(Places *places, at_t value)
{
    if (places->count == places->room) {
        at_t room = places->room ? 2 * places->room : 64;
        int64_t *items = PyMem_Realloc(places->items, room * sizeof(int64_t));
        if (items == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        places->items = items;
        places->room = room;
    }
    places->items[places->count++] = value;
    return 0;
}

/* -- descriptions -------------------------------------------------------------------------------------- */

typedef struct {
    bytes_t body, old;
    at_t size, old_size;
    const int64_t *pieces; /* piece i of the earlier body begins at pieces[i] */
    at_t count;            /* of its pieces */
    Places bounds;
    PyObject *parts, *apart;
    at_t kept_first, kept_count; /* pieces that stay, not among the parts yet */
    PyObject *digest_of, *text_or_base64;
} Made;

/* How many of the earlier body's bounds are less than a place (`right`: or are it). */
static at_t
bisect(const Made *made, at_t place, int right)
{
    at_t low = 0, high = made->count + 1;
    while (low < high) {
        at_t middle = (low + high) / 2;
        if (made->pieces[middle] < place || (right && made->pieces[middle] == place))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int
append(PyObject *list, PyObject *item)
{
    int failed = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

static int
tell_kept(Made *made)
{
    if (made->kept_count == 0)
        return 0;
    at_t count = made->kept_count;
    made->kept_count = 0;
    return append(made->parts, Py_BuildValue("[nn]", made->kept_first, count));
}

static at_t
reached(const Made *made)
{
    return made->bounds.items[made->bounds.count - 1];
}

static int
keep(Made *made, at_t first, at_t count)
{
    if (count <= 0)
        return 0;
    if (made->kept_count && made->kept_first + made->kept_count == first)
        made->kept_count += count;
    else {
        if (tell_kept(made) < 0)
            return -1;
        made->kept_first = first;
        made->kept_count = count;
    }
    at_t moved = reached(made) - made->pieces[first];
    for (at_t index = first + 1; index <= first + count; index++)
        if (add(&made->bounds, made->pieces[index] + moved) < 0)
            return -1;
    return 0;
}

static int
copy(Made *made, at_t begin, at_t end)
{
    at_t index = bisect(made, begin, 1) - 1;
    while (begin < end) {
        if (begin == made->pieces[index] && made->pieces[index + 1] <= end) {
            at_t whole = bisect(made, end, 1) - 1;
            if (keep(made, index, whole - index) < 0)
                return -1;
            begin = made->pieces[whole];
            index = whole;
            continue;
        }
        at_t stop = least(end, made->pieces[index + 1]), from = made->pieces[index];
        if (tell_kept(made) < 0 || append(made->parts, Py_BuildValue("[nnn]", index, begin - from, stop - from)) < 0
            || add(&made->bounds, reached(made) + stop - begin) < 0)
            return -1;
        begin = stop;
        index++;
    }
    return 0;
}

static at_t
beside(const Made *made, at_t at, at_t length, at_t near)
{
    for (at_t index = least(near, made->count - 1); index >= most(near - BESIDE, 0); index--) {
        at_t begin = made->pieces[index];
        if (made->pieces[index + 1] - begin == length && memcmp(made->old + begin, made->body + at, length) == 0)
            return index;
    }
    return -1;
}

static int
tell_short(Made *made, at_t at, at_t length)
{
    char text[1 + INLINE];
    text[0] = '=';
    memcpy(text + 1, made->body + at, length);
    PyObject *part = PyUnicode_DecodeUTF8(text, 1 + length, NULL);
    if (part == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            return -1;
        PyErr_Clear();
        part = PyObject_CallFunction(made->text_or_base64, "y#", (const char *)made->body + at, length);
    }
    return append(made->parts, part);
}

static int
tell_apart(Made *made, at_t at, at_t length)
{
    PyObject *piece = PyBytes_FromStringAndSize((const char *)made->body + at, length);
    PyObject *digest = piece == NULL ? NULL : PyObject_CallOneArg(made->digest_of, piece);
    int failed = digest == NULL || append(made->parts, PyUnicode_FromFormat("#%U", digest)) < 0
                 || append(made->apart, PyTuple_Pack(2, digest, piece)) < 0;
    Py_XDECREF(digest);
    Py_XDECREF(piece);
    return failed ? -1 : 0;
}

static int
tell_new(Made *made, at_t at, at_t cut, at_t near)
{
    at_t length = cut - at;
    if (SHORT < length && length <= INLINE) {
        at_t place = beside(made, at, length, near);
        if (place >= 0)
            return keep(made, place, 1);
    }
    if (tell_kept(made) < 0 || add(&made->bounds, cut) < 0)
        return -1;
    return length <= INLINE ? tell_short(made, at, length) : tell_apart(made, at, length);
}

/* Bytes `at` to `end`, new, cut at `cuts`; NULL: where they are to be cut by themselves. */
static int
new(Made *made, at_t at, at_t end, const Places *cuts, at_t near)
{
    at_t begin = at;
    if (cuts != NULL) {
        for (at_t index = 0; index < cuts->count; index++) {
            at_t cut = cuts->items[index];
            if (begin < cut && cut < end) {
                if (tell_new(made, at, cut, near) < 0)
                    return -1;
                at = cut;
            }
        }
    }
    else if (end - at > INLINE) {
        Cuts own = cuts_of(made->body, at, end);
        for (at_t cut = next_cut(&own); cut >= 0; cut = next_cut(&own))
            if (begin < cut && cut < end) {
                if (tell_new(made, at, cut, near) < 0)
                    return -1;
                at = cut;
            }
    }
    return tell_new(made, at, end, near);
}

static at_t
whole_string(const Made *made, at_t at, at_t count, int step, at_t other)
{
    bytes_t body = made->body;
    at_t edge = at + step * count;
    if (step > 0) {
        at_t begin = quote_before(body, most(most(at - 1, edge - FINE), 0), edge) + 1;
        at_t needed = begin + most(LONG, 2 * (edge - begin) + 1);
        int cut = begin > 0 && needed <= other && quote_after(body, made->size, edge, needed) >= needed;
        return cut ? count - (edge - begin) : count;
    }
    at_t end = quote_after(body, made->size, edge, least(at + 1, edge + FINE));
    at_t needed = end - most(LONG, 2 * (end - edge) + 1);
    int cut = end <= at && other <= needed && quote_before(body, needed, edge) < 0;
    return cut ? count - (end - edge) : count;
}

static at_t
characters(const Made *made, at_t at, at_t count, int step, at_t other)
{
    if (count >= SLICE && step * (other - at) > count)
        count = whole_string(made, at, count, step, other);
    while (count >= SLICE && at + step * count < made->size && (made->body[at + step * count] & 0xC0) == 0x80)
        count--;
    return count >= SLICE ? count : 0;
}

/* Stretches of bytes `at` to `end` that the earlier body has between `place` and `last`, and what is new between. */
static int
runs(Made *made, at_t at, at_t end, at_t place, at_t last, const Places *cuts, at_t first)
{
    bytes_t body = made->body, old = made->old;
    at_t done = at, misses = 0;
    while (at + SLICE <= end && misses < MISSES) {
        at_t room = least(last, place + FINE) - place, same = 0;
        bytes_t found = room >= SLICE ? memmem(old + place, room, body + at, SLICE) : NULL;
        if (found != NULL) {
            same = start_alike(body + at, found, least(end - at, last - (found - old)));
            same = characters(made, at, same, 1, end);
        }
        if (same) {
            place = found - old;
            if ((at > done && new(made, done, at, cuts, first) < 0) || copy(made, place, place + same) < 0)
                return -1;
            at += same;
            place += same;
            done = at;
        }
        misses++;
        at = find(body, '"', at, end) + 1;
        if (!at)
            break;
    }
    return done < end ? new(made, done, end, cuts, first) : 0;
}

static int
replaced(Made *made, at_t at, at_t end, at_t first, at_t last, const Places *cuts)
{
    at_t old_at = made->pieces[first], old_end = made->pieces[last];
    at_t limit = least(end - at, old_end - old_at);
    at_t alike = start_alike(made->body + at, made->old + old_at, limit);
    at_t alike_end = end_alike(made->body + end, made->old + old_end, limit - alike);
    at_t same = characters(made, at, alike, 1, end - alike_end);
    at_t same_end = characters(made, end, alike_end, -1, at + alike);
    if (copy(made, old_at, old_at + same) < 0)
        return -1;
    at += same;
    old_at += same;
    end -= same_end;
    old_end -= same_end;
    if (end - at >= SLICE && old_end - old_at >= SLICE) {
        if (runs(made, at, end, old_at, old_end, cuts, first) < 0)
            return -1;
    }
    else if (at < end && new(made, at, end, cuts, first) < 0)
        return -1;
    return copy(made, old_end, old_end + same_end);
}

/* -- pieces of the earlier body by how they begin ------------------------------------------------------- */

typedef struct {
    at_t mask, base; /* of the table; the first piece in it */
    at_t *slots, *next;
} Heads;

static size_t
hash(bytes_t bytes, at_t length)
{
    uint64_t value = 14695981039346656037u;
    for (at_t index = 0; index < length; index++)
        value = (value ^ bytes[index]) * 1099511628211u;
    return (size_t)(value ^ (value >> 32));
}

static int
heads_of(const Made *made, at_t first, at_t last, Heads *heads)
{
    at_t room = 16;
    while (room < 2 * (last - first))
        room *= 2;
    heads->mask = room - 1;
    heads->base = first;
    heads->slots = PyMem_Malloc((room + last - first) * sizeof(at_t));
    if (heads->slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    heads->next = heads->slots + room;
    for (at_t slot = 0; slot < room; slot++)
        heads->slots[slot] = -1;
    for (at_t index = last - 1; index >= first; index--) {
        at_t begin = made->pieces[index];
        at_t slot = hash(made->old + begin, least(HEAD, made->old_size - begin)) & heads->mask;
        heads->next[index - first] = heads->slots[slot];
        heads->slots[slot] = index;
    }
    return 0;
}

/* The first piece from `first` on that begins as the body does at a place; -1 where none does. `first` never falls. */
static at_t
headed(const Made *made, Heads *heads, at_t at, at_t first)
{
    at_t length = least(HEAD, made->size - at);
    at_t *slot = &heads->slots[hash(made->body + at, length) & heads->mask];
    while (*slot >= 0 && *slot < first)
        *slot = heads->next[*slot - heads->base];
    for (at_t index = *slot; index >= 0; index = heads->next[index - heads->base]) {
        at_t begin = made->pieces[index];
        if (least(HEAD, made->old_size - begin) == length
            && memcmp(made->old + begin, made->body + at, length) == 0)
            return index;
    }
    return -1;
}

static int
changed(Made *made, at_t at, at_t end, at_t first, at_t last)
{
    if (end - at <= INLINE || (last - first <= FEW && end - at <= FINE))
        return replaced(made, at, end, first, last, NULL);
    Heads heads;
    Places cuts = {NULL, 0, 0};
    if (heads_of(made, first, last, &heads) < 0)
        return -1;
    at_t begin = at;
    Cuts ends = cuts_of(made->body, at, end);
    int failed = 0;
    while (at < end && !failed) {
        at_t place = headed(made, &heads, at, first);
        if (place >= 0) {
            at_t from = made->pieces[place];
            at_t same = start_alike(made->body + at, made->old + from, least(end - at, made->pieces[last] - from));
            at_t after = bisect(made, from + same, 1) - 1;
            if (after > place) {
                failed = replaced(made, begin, at, first, place, &cuts) < 0 || keep(made, place, after - place) < 0;
                at += made->pieces[after] - from;
                first = after;
                begin = at;
                cuts.count = 0;
                ends = cuts_of(made->body, at, end);
                continue;
            }
        }
        at = next_cut(&ends);
        failed = add(&cuts, at) < 0;
    }
    if (!failed)
        failed = replaced(made, begin, end, first, last, &cuts) < 0;
    PyMem_Free(heads.slots);
    PyMem_Free(cuts.items);
    return failed ? -1 : 0;
}

static int
describe(Made *made, at_t *tail)
{
    at_t limit = least(made->size, made->old_size);
    at_t first = bisect(made, start_alike(made->body, made->old, limit), 1) - 1;
    at_t at = made->pieces[first];
    if (add(&made->bounds, 0) < 0 || keep(made, 0, first) < 0)
        return -1;
    at_t same = end_alike(made->body + made->size, made->old + made->old_size, limit - at);
    at_t last = bisect(made, made->old_size - same, 0);
    at_t end = made->size - (made->old_size - made->pieces[last]);
    if (at < end && (first == last ? new(made, at, end, NULL, first) : changed(made, at, end, first, last)) < 0)
        return -1;
    *tail = made->bounds.count - 1;
    return keep(made, last, made->count - last) < 0 || tell_kept(made) < 0 ? -1 : 0;
}

/* Whether places are those of pieces that make up a body: nothing beyond it is ever looked at. */
static int
are_bounds(const int64_t *places, at_t count, at_t size)
{
    if (count < 1 || places[0] != 0 || places[count - 1] != size)
        return 0;
    for (at_t index = 1; index < count; index++)
        if (places[index] < places[index - 1])
            return 0;
    return 1;
}

PyDoc_STRVAR(describe_doc, "describe(body, old, bounds, digest_of, text_or_base64) -> (parts, apart, bounds, tail)\n\n"
                           "What `rope.Description` is made of; bounds are 64-bit integers, one behind the other.");

static PyObject *
py_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer bounds;
    if (nargs != 5 || !PyBytes_CheckExact(args[0]) || !PyBytes_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "describe() takes two bodies, bounds and two functions");
        return NULL;
    }
    if (PyObject_GetBuffer(args[2], &bounds, PyBUF_SIMPLE) < 0)
        return NULL;
    Made made = {
        .body = (bytes_t)PyBytes_AS_STRING(args[0]),
        .size = PyBytes_GET_SIZE(args[0]),
        .old = (bytes_t)PyBytes_AS_STRING(args[1]),
        .old_size = PyBytes_GET_SIZE(args[1]),
        .pieces = bounds.buf,
        .count = bounds.len / (at_t)sizeof(int64_t) - 1,
        .digest_of = args[3],
        .text_or_base64 = args[4],
        .parts = PyList_New(0),
        .apart = PyList_New(0),
    };
    PyObject *found = NULL;
    at_t tail = 0;
    if (!are_bounds(made.pieces, made.count + 1, made.old_size))
        PyErr_SetString(PyExc_ValueError, "these are no bounds of the earlier body");
    else if (made.parts != NULL && made.apart != NULL && describe(&made, &tail) == 0)
        found = Py_BuildValue("OOy#n", made.parts, made.apart, (const char *)made.bounds.items,
                              made.bounds.count * (at_t)sizeof(int64_t), tail);
    PyBuffer_Release(&bounds);
    PyMem_Free(made.bounds.items);
    Py_XDECREF(made.parts);
    Py_XDECREF(made.apart);
    return found;
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

static PyObject *
py_start_alike(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return py_alike(args, nargs, 0);
}

static PyObject *
py_end_alike(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return py_alike(args, nargs, 1);
}

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

PyDoc_STRVAR(suspicious_doc, "suspicious(data, start, end, patterns, word) -> bool\n\n"
                             "As `mask_rules.suspicious`. `patterns`: for each, the byte that it begins with, and its\n"
                             "`match` and `search`.");

static PyObject *
py_suspicious(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[3]) || !PyBytes_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "suspicious() takes bytes, two offsets, a tuple of patterns and bytes");
        return NULL;
    }
    at_t start = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return NULL;
    bytes_t data = (bytes_t)PyBytes_AS_STRING(args[0]);
    start = most(start, 0);
    end = least(end, PyBytes_GET_SIZE(args[0]));
    if (start >= end)
        Py_RETURN_FALSE;
    for (at_t index = 0; index < PyTuple_GET_SIZE(args[3]); index++) {
        int anchor, places = 0;
        PyObject *match, *search;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args[3], index), "iOO", &anchor, &match, &search))
            return NULL;
        if (anchor == ':' && find(data, '@', start, end) < 0)
            continue; /* no password in a URL */
        for (at_t at = find(data, anchor, start, end); at >= 0; at = find(data, anchor, at + 1, end)) {
            if (!may_begin(data, PyBytes_GET_SIZE(args[0]), at))
                continue;
            int many = ++places > FEW_PLACES, yes = says_yes(many ? search : match, args[0], at, args[2]);
            if (yes < 0)
                return NULL;
            if (yes)
                Py_RETURN_TRUE;
            if (many)
                break;
        }
    }
    return PyBool_FromLong(memmem(data + start, end - start, PyBytes_AS_STRING(args[4]), PyBytes_GET_SIZE(args[4]))
                           != NULL);
}

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

PyDoc_STRVAR(attributes_doc, "attributes(attributes, but, known, tag, whole) -> bytes\n\n"
                             "Attributes as fields of a span, but for those whose name is among `but`. `known`: how\n"
                             "common names are written, in fields that begin with `tag`; `whole(name, value)` writes\n"
                             "what is of no usual kind.");

static PyObject *
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

static PyMethodDef functions[] = {
    {"describe", (PyCFunction)(void (*)(void))py_describe, METH_FASTCALL, describe_doc},
    {"start_alike", (PyCFunction)(void (*)(void))py_start_alike, METH_FASTCALL, "As `alike.start_alike`."},
    {"end_alike", (PyCFunction)(void (*)(void))py_end_alike, METH_FASTCALL, "As `alike.end_alike`."},
    {"suspicious", (PyCFunction)(void (*)(void))py_suspicious, METH_FASTCALL, suspicious_doc},
    {"attributes", (PyCFunction)(void (*)(void))py_attributes, METH_FASTCALL, attributes_doc},
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
