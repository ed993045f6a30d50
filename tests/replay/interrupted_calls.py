"""Programs whose signals come into calls: what `test_signals_in_calls` records, each by its name.

All of them begin with `HEAD`; `limited` calls something that a timer's signal comes into.
"""

HEAD = """
import os, signal, sys, threading, time
import anthropic, httpx, httpx2, openai
from otel_agent_replay import boundary

URL = os.environ["BASE_URL"]
seen = []

class TooLate(Exception):
    pass

class Slow(TimeoutError):
    pass

def ring(number, frame):
    print("rings", flush=True)
    raise TooLate(number)

def late(number, frame):
    print("late", flush=True)
    raise Slow(number)

def leave(number, frame):
    sys.exit(7)

def interrupt(number, frame):
    raise KeyboardInterrupt

def count(number, frame):
    seen.append(number)

def limited(work, seconds=0.5, handler=ring, again=0.0):
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        print("gives", work())
    except BaseException as error:
        names = []
        while error is not None:
            names.append(type(error).__name__)
            error = error.__cause__ or error.__context__
        print(*names)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

def say(what):
    return [{"role": "user", "content": what}]

OPENAI = openai.OpenAI(base_url=URL + "/v1", timeout=60)
ANTHROPIC = anthropic.Anthropic(base_url=URL, api_key="k", timeout=60)

def gpt(what, retries=0, **more):
    model = OPENAI.with_options(max_retries=retries)
    return model.chat.completions.create(model="m", messages=say(what), **more)

def text(what, retries=0):
    return gpt(what, retries).choices[0].message.content

def claude(what, retries=0, **more):
    model = ANTHROPIC.with_options(max_retries=retries)
    return model.messages.create(model="m", messages=say(what), max_tokens=5, **more)

def pieces(what):
    for chunk in gpt(what, stream=True):
        print(chunk.choices[0].delta.content, end="|", flush=True)

def events(what):
    for event in claude(what, stream=True):
        print(event.type)

@boundary("tool", "add")
def add(number):
    return number + 1

@boundary("tool", "slow")
def slow(seconds):
    time.sleep(seconds)
    return "slow"

print(text("first"), claude("first").content[0].text)  # what is imported then takes its time

def asks(number, frame):
    print("asks", text("inside"), add(5))

def asks_and_raises(number, frame):
    asks(number, frame)
    raise TooLate(number)
"""

PROGRAMS = {
    "a model call": """
limited(lambda: text("before=20"))
limited(lambda: claude("before=20"))
print(text("after"), claude("after").content[0].text)
""",
    "an HTTP call": """
limited(lambda: httpx.get(URL + "/before=20", timeout=60))
limited(lambda: httpx2.post(URL + "/x", json={"stream": True, "p": "pieces=2 stall=20"}, timeout=60).text)
print(httpx.get(URL + "/after").json())
""",
    "a stream": """
limited(lambda: pieces("pieces=2 stall=20"))
limited(lambda: events("pieces=3 stall=20"))
print(text("after"))
""",
    "a stream of plain HTTP": """
def lines():
    body = {"stream": True, "p": "pieces=2 stall=20"}
    with httpx.stream("POST", URL + "/x", json=body, timeout=60) as response:
        for line in response.iter_lines():
            print(line)
limited(lines)
print(text("after"))
""",
    "code between two chunks": """
def busy():
    for chunk in gpt("quick", stream=True):
        print(chunk.choices[0].delta.content)
        while chunk.choices[0].delta.content == "er":
            pass
limited(busy, 0.6)
print(text("after"))
""",
    "code before a call that was never made": """
def busy():
    print(text("first"))
    for _ in range(200_000):
        sum(range(1000))
    return text("never asked")
limited(busy, 0.6)
print(text("after"))
""",
    "code before a call that is made again": """
def busy(work):
    for _ in range(200_000):
        sum(range(1000))
    return work()
def again(work):
    try:
        return busy(work)
    except (Slow, TooLate):
        return work()
limited(lambda: again(lambda: text("again", retries=2)), handler=late)
limited(lambda: again(lambda: add(1)))
print(text("after"), add(2))
""",
    "what shows where it was": """
import traceback
def shown(work):
    def run():
        try:
            return work()
        except TooLate:
            print(traceback.format_exc())
    return run
limited(shown(lambda: text("before=20")))
limited(shown(lambda: pieces("pieces=2 stall=20")))
limited(shown(lambda: slow(20)))
""",
    "an exit and an interrupt": """
limited(lambda: text("before=20"), handler=leave)
limited(lambda: pieces("pieces=2 stall=20"), handler=interrupt)
limited(lambda: slow(20), handler=interrupt)
print(text("after"))
""",
    "an attempt that is made again": """
limited(lambda: text("before=1.5", retries=2), handler=late)
limited(lambda: claude("before=1.5", retries=2).content[0].text, handler=late)
print(text("after"))
""",
    "the pause before another attempt": """
limited(lambda: text("refuse=2", retries=3))
print(text("after"))
""",
    "a tool that makes something of it": """
@boundary("tool", "patient")
def patient():
    try:
        time.sleep(20)
    except TooLate:
        return "patient"
@boundary("tool", "wraps")
def wraps():
    try:
        time.sleep(20)
    except TooLate as error:
        raise ValueError("wrapped") from error
@boundary("tool", "items")
def items():
    for number in range(20):
        yield number
        time.sleep(0.2)
limited(patient)
limited(wraps)
limited(lambda: [print(item) for item in items()])
print(add(1))
""",
    "a call, by a handler that asks": """
limited(lambda: text("before=1.5"), handler=asks)
limited(lambda: pieces("pieces=2 stall=1.5"), handler=asks)
limited(lambda: slow(1.5), handler=asks)
print(text("after"))
""",
    "a call, by a handler that asks and raises": """
limited(lambda: text("before=20"), handler=asks_and_raises)
limited(lambda: slow(20), handler=asks_and_raises)
print(text("after"))
""",
    "one call twice": """
def another(number, frame):
    print("another", flush=True)
    raise ValueError
signal.signal(signal.SIGUSR1, another)
def send():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=send).start()
def twice():
    try:
        text("before=20")
    finally:
        text("before=20, again")
limited(twice, 1.2)
limited(lambda: text("before=1.5"), 0.2, count, 0.2)
limited(lambda: slow(1.5), 0.2, count, 0.2)
print(len(seen), text("after"))
""",
}
