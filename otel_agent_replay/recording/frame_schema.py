"""The fields of a frame, as every reader must know them: numbers and places never change, new ones are added."""

from __future__ import annotations

from otel_agent_replay.recording import names

FRAME_PROTO = """\
syntax = "proto3";
message ArrayValue { repeated AnyValue values = 1; }
message AnyValue {
  string string_value = 1; bool bool_value = 2; int64 int_value = 3; double double_value = 4;
  ArrayValue array_value = 5;
}
message KeyValue { string key = 1; AnyValue value = 2; }
message Status { string message = 2; int32 code = 3; }
message Piece { bytes digest = 1; string text = 2; string base64 = 3; }
message Known { uint32 key = 1; AnyValue value = 2; }
message Frame {
  bytes trace_id = 1; bytes span_id = 2; bytes parent_span_id = 4; string name = 5; int32 kind = 6;
  fixed64 start_time_unix_nano = 7; fixed64 end_time_unix_nano = 8;
  repeated KeyValue attributes = 9; Status status = 15;
  uint32 frame = 201; uint32 schema = 202; bytes run = 203; string lane = 204; string key = 205;
  uint64 ordinal = 206; string boundary = 207; uint64 seq = 208; string end = 209;
  string payload = 210; uint64 payload_length = 211; bytes payload_digest = 212;
  repeated Piece contents = 213;
  repeated Known known = 214;
  fixed32 crc = 18500000;
}
"""
"""What a frame is, for any other protobuf reader (ClickHouse's `format_schema`, say). Fields below 200 are OTLP's."""

KNOWN = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.request.stream",
    "gen_ai.request.temperature",
    "gen_ai.request.top_p",
    "gen_ai.request.max_tokens",
    "gen_ai.request.seed",
    "gen_ai.request.choice.count",
    "gen_ai.request.reasoning.level",
    "gen_ai.response.id",
    "gen_ai.response.model",
    "gen_ai.response.finish_reasons",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.output.type",
    "gen_ai.tool.name",
    "gen_ai.tool.call.id",
    "gen_ai.tool.type",
    "gen_ai.conversation.id",
    "gen_ai.agent.name",
    "openai.api.type",
    "openai.request.service_tier",
    "openai.response.service_tier",
    "openai.response.system_fingerprint",
    "server.address",
    "server.port",
    "error.type",
    "http.request.method",
    "http.response.status_code",
    "url.full",
    names.SERVING,
    names.ANSWERED,
    names.ANSWERED_BY,
)
"""Names that stand in a frame as their place in this list. It only ever grows at its end: old files count on it."""
