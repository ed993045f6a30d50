/* How a body is described by an earlier one: `rope`. */

#include "compiled.h"

#define INLINE 160
#define SLICE 24
#define SHORT 10
#define BESIDE 8
#define HEAD 48
#define MISSES 64
#define FINE 8192
#define FEW 4
#define LONG 256

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

const char describe_doc[] =
    "describe(body, old, bounds, digest_of, text_or_base64) -> (parts, apart, bounds, tail)\n\n"
    "What `rope.Description` is made of; bounds are 64-bit integers, one behind the other.";

PyObject *
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
