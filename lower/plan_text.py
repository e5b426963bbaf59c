"""Plans as text that prints and parses: ``plan.json`` for people, tests and differences.

    plan arena_bytes=16 {
      %0 = input 'x' : float32[4]
      %1 = arena : float32[4]
      %2 = output 'y' : float32[4] strides=(2,) offset=1
      onednn 'relu' (%0) -> (%2) {"algorithm": "relu", "arguments": {"src": 0}, "primitive": "eltwise"} predicted_us=3.5
      input 'x' : float32[4] = %0
      output 'y' : float32[4] = %2
    }

An artefact keeps its plan as JSON, which the runtime reads without a parser of ours. Strides are written where they are not
those of a dense row-major tensor, and a step's recipe as the JSON data that it is.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from egraph.tensor import TensorType
from egraph.tensor.text import Reader
from egraph.tensor.text.reader import WORD
from lower.views import row_major
from runtime.plan import Area, Buffer, Plan, Port, Step

AREAS: tuple[str, ...] = get_args(Area)


def format_plan(plan: Plan) -> str:
    """Return a plan as text."""
    notes = f" notes={_json(plan.notes)}" if plan.notes else ""
    subnormals = f" keep_subnormals={plan.keep_subnormals}" if plan.keep_subnormals else ""
    device = f" device={plan.device!r}" if plan.device != Plan.device else ""
    lines = [f"plan arena_bytes={plan.arena_bytes}{subnormals}{device}{notes} {{"]
    for number, buffer in enumerate(plan.buffers):
        key = f" {buffer.key!r}" if buffer.key else ""
        strides = f" strides={buffer.strides!r}" if buffer.strides != row_major(buffer.shape) else ""
        offset = f" offset={buffer.offset}" if buffer.offset else ""
        lines.append(f"  %{number} = {buffer.area}{key} : {TensorType(buffer.dtype, buffer.shape)}{strides}{offset}")
    for step in plan.steps:
        fields = "".join(f" {name}={value!r}" for name in ("source_nodes", "rules") if (value := getattr(step, name)))
        fields += f" predicted_us={step.predicted_us!r}" if step.predicted_us else ""
        operands, results = (", ".join(f"%{number}" for number in numbers) for numbers in (step.inputs, step.outputs))
        lines.append(f"  {step.kind} {step.name!r} ({operands}) -> ({results}) {_json(step.spec)}{fields}")
    for word, ports in (("input", plan.inputs), ("output", plan.outputs)):
        lines += [f"  {word} {port.name!r} : {TensorType(port.dtype, port.shape)} = %{port.buffer}" for port in ports]
    return "\n".join([*lines, "}"]) + "\n"


def _json(data: object) -> str:
    return json.dumps(data, sort_keys=True)


def parse_plan(text: str, name: str = "") -> Plan:
    """Return the plan of a text; raises TextError."""
    reader = Reader(text, name)
    plan = read_plan(reader)
    reader.end()
    return plan


def read_plan(reader: Reader) -> Plan:
    """Read a plan."""
    buffers: list[Buffer] = []
    steps: list[Step] = []
    ports: dict[str, list[Port]] = {"input": [], "output": []}
    reader.expect("plan")
    head = reader.fields(arena_bytes=reader.integer, keep_subnormals=reader.flag, device=reader.string, notes=lambda: _read_json(reader))
    reader.expect("{")

    def number() -> int:
        at = reader.start()
        reader.expect("%")
        value = reader.integer("a buffer's number")
        if not 0 <= value < len(buffers):
            raise reader.error(f"there is no buffer %{value} above", at)
        return value

    def port() -> Port:
        name = reader.string()
        reader.expect(":")
        type = reader.type()
        reader.expect("=")
        return Port(name, type.dtype, type.shape, number())

    while not reader.accept("}"):
        if reader.sees("%"):
            buffers.append(_buffer(reader, len(buffers)))
        elif (word := reader.peek(WORD)) in ports:
            reader.take(WORD, "")
            ports[word].append(port())
        else:
            kind, step_name = reader.take(WORD, "%NUMBER = BUFFER, a step's kind, input, output or '}'"), reader.string()
            inputs = reader.tuple_of(number)()
            reader.expect("->")
            outputs = reader.tuple_of(number)()
            spec = _read_json(reader)
            names = reader.tuple_of(reader.string)
            fields = reader.fields(source_nodes=names, rules=names, predicted_us=reader.real)
            steps.append(Step(kind, step_name, inputs, outputs, spec, **fields))
    head = {"arena_bytes": 0, **head}
    return Plan(tuple(buffers), tuple(steps), tuple(ports["input"]), tuple(ports["output"]), **head)


def _buffer(reader: Reader, following: int) -> Buffer:
    at = reader.start()
    reader.expect("%")
    if reader.integer("a buffer's number") != following:
        raise reader.error(f"expected buffer %{following}: buffers are numbered in order", at)
    reader.expect("=")
    at = reader.start()
    area: Any = reader.take(WORD, "an area")
    if area not in AREAS:
        raise reader.error(f"expected one of {', '.join(AREAS)}", at)
    key = "" if reader.sees(":") else reader.string()
    reader.expect(":")
    at = reader.start()
    type = reader.type()
    if not type.is_static:
        raise reader.error("expected known sizes", at)
    at = reader.start()
    fields = reader.fields(strides=reader.tuple_of(reader.integer), offset=reader.integer)
    strides = fields.get("strides", row_major(type.sizes))
    if len(strides) != type.rank:
        raise reader.error(f"expected {type.rank} strides", at)
    return Buffer(type.dtype, type.sizes, strides, area, key, fields.get("offset", 0))


def _read_json(reader: Reader) -> dict[str, Any]:
    at = reader.start()
    try:
        value, reader.position = json.JSONDecoder().raw_decode(reader.text, at)
    except json.JSONDecodeError as error:
        raise reader.error(f"expected JSON: {error.msg}", error.pos) from error
    if not isinstance(value, dict):
        raise reader.error("expected a JSON object", at)
    return value
