"""The only part that knows the OpenTelemetry SDK: distro, ids, live spans, the spool."""
