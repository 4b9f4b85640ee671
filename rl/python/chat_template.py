"""Renders the chat templates of a model with Jinja2, in the environment that transformers gives them."""

import sys

sys.path[:1] = []  # the working directory, whose modules are not ours


def describe(error):
    line = getattr(error, "lineno", None)
    if line is None:  # an error while rendering: the frame of the template
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                line = trace.tb_lineno
            trace = trace.tb_next
    text = str(error) or type(error).__name__
    known = type(error).__name__ in ("TemplateError", "MissingJinja", "UnknownOption")
    return ("" if line is None else f"line {line} of the template: ") + (text if known else f"{type(error).__name__}: {text}")


class MissingJinja(Exception):
    pass


class UnknownOption(Exception):
    pass


def make_environment():
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingJinja(f"{sys.executable} has no Jinja2; install Debian's python3-jinja2, or `pip install jinja2`")
    if tuple(int(part) for part in jinja2.__version__.split(".")[:2]) < (3, 1):
        raise MissingJinja(f"{sys.executable} has Jinja2 {jinja2.__version__}, expected 3.1 or later")
    import datetime
    import json

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: notes which part of the text the assistant said."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

        def said(self, caller):
            text = caller()
            begin = sum(map(len, rendered))
            spans.append([begin, begin + len(text)])
            return text

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


templates = {}  # by name
variables = {}
rendered = []  # blocks of the text that is being rendered
spans = []  # of it, in characters


def setup(value):
    environment = make_environment()
    variables.update(value["variables"])
    for name, text in value["templates"].items():
        templates[name] = environment.from_string(text)
    refuse_unread(environment, value)


def refuse_unread(environment, value):
    """An option that no template reads is a misspelt one."""
    from jinja2 import meta

    read = set().union(*(meta.find_undeclared_variables(environment.parse(text)) for text in value["templates"].values()))
    unread = [name for name in value["options"] if name not in read]
    if unread:
        free = sorted(read - set(environment.globals) - {"messages", "tools", "documents", "add_generation_prompt"}
                      - (set(value["variables"]) - set(value["options"])))
        raise UnknownOption(f"data.template_options names {', '.join(unread)}, which the template does not read; it reads "
                            + (", ".join(free) or "no option"))


def text_of(messages, tools, prompt):
    name = "tool_use" if tools is not None and "tool_use" in templates else "default"
    rendered.clear()
    spans.clear()
    stream = templates[name].generate(**{**variables, "messages": messages, "tools": tools, "documents": None,
                                         "add_generation_prompt": prompt})
    for block in stream:
        rendered.append(block)
    return "".join(rendered)


def assistant_spans(messages, tools, text):
    """Where the assistant speaks, by rendering the conversation up to each of its turns, before and after."""
    found = []
    for i, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        head = text_of(messages[:i], tools, True)
        through = text_of(messages[: i + 1], tools, False)
        if not through.startswith(head) or not text.startswith(through.rstrip()):
            raise ValueError(f"message {i + 1} is rendered in another way once others follow, so what the assistant says cannot "
                             "be told from the template; expected a template with {% generation %}, data.chat_template chatml "
                             "or llama3, or one answer a document")
        found.append([len(head), len(through.rstrip())])
    return found


def answer(value):
    messages, tools, form = value["messages"], value["tools"], value["form"]
    text = text_of(messages, tools, form == "prompt")
    if form != "spans":
        return {"text": text}
    marked = [list(span) for span in spans]
    found = marked or assistant_spans(messages, tools, text)
    in_bytes = lambda count: len(text[:count].encode())
    return {"text": text, "spans": [[in_bytes(begin), in_bytes(end)] for begin, end in found]}
