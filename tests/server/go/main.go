// A client as the Collector's ClickHouse exporter and Grafana's data source are: clickhouse-go over http.
//
//	clickhouse-client ADDRESS PASSWORD COMPRESSION
//
// inserts a batch of 3 rows into otel.otel_traces, reads them back from otel.spans, meets an error, and prints "ok".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

var methods = map[string]clickhouse.CompressionMethod{
	"none": clickhouse.CompressionNone, "lz4": clickhouse.CompressionLZ4, "zstd": clickhouse.CompressionZSTD,
	"gzip": clickhouse.CompressionGZIP,
}

const insert = `INSERT INTO "otel"."otel_traces" (Timestamp, TraceId, SpanId, ParentSpanId, TraceState, SpanName,
SpanKind, ServiceName, ResourceAttributes, ScopeName, ScopeVersion, SpanAttributes, Duration, StatusCode, StatusMessage,
Events.Timestamp, Events.Name, Events.Attributes, Links.TraceId, Links.SpanId, Links.TraceState, Links.Attributes)`

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

func run(address, password, compression string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	conn, err := clickhouse.Open(&clickhouse.Options{
		Addr:        []string{address},
		Protocol:    clickhouse.HTTP,
		Auth:        clickhouse.Auth{Database: "otel", Username: "default", Password: password},
		Compression: &clickhouse.Compression{Method: methods[compression]},
		DialTimeout: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Ping(ctx); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	service := "go-" + compression
	if err := write(ctx, conn, service); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if err := read(ctx, conn, service); err != nil {
		return fmt.Errorf("select: %w", err)
	}
	var exception *clickhouse.Exception
	_, err = conn.Query(ctx, "SELECT * FROM otel.nothing")
	if !(errors.As(err, &exception) && exception.Code == 60) && !strings.Contains(fmt.Sprint(err), "Code: 60") {
		return fmt.Errorf("an unknown table gave: %v", err)
	}
	return nil
}

func write(ctx context.Context, conn clickhouse.Conn, service string) error {
	batch, err := conn.PrepareBatch(ctx, insert)
	if err != nil {
		return err
	}
	none, maps := []string{}, []map[string]string{}
	for number := range 3 {
		err := batch.Append(time.Now(), fmt.Sprintf("%032x", number+1), fmt.Sprintf("%016x", number+1), "", "", "from go",
			"Client", service, map[string]string{"service.name": service}, "scope", "1", map[string]string{
				"n": fmt.Sprint(number), "long": strings.Repeat("é", 300_000)},
			int64(5), "Unset", "", []time.Time{time.Now()}, []string{"event"}, []map[string]string{{"a": "b"}},
			none, none, none, maps)
		if err != nil {
			return err
		}
	}
	return batch.Send()
}

func read(ctx context.Context, conn clickhouse.Conn, service string) error {
	rows, err := conn.Query(ctx, "SELECT span_id, attributes['n'], duration_ns FROM otel.spans FINAL WHERE service = $1 "+
		"ORDER BY span_id", service)
	if err != nil {
		return err
	}
	defer rows.Close()
	count := 0
	for ; rows.Next(); count++ {
		var span, n string
		var lasted uint64
		if err := rows.Scan(&span, &n, &lasted); err != nil {
			return err
		}
		if span != fmt.Sprintf("%016x", count+1) || n != fmt.Sprint(count) || lasted != 5 {
			return fmt.Errorf("row %d is %s %s %d", count, span, n, lasted)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if count != 3 {
		return fmt.Errorf("%d rows", count)
	}
	numbers, err := conn.Query(ctx, "SELECT number, repeat('x', 100) FROM numbers(200000)")
	if err != nil {
		return err
	}
	defer numbers.Close()
	var sum uint64
	for numbers.Next() {
		var number uint64
		var text string
		if err := numbers.Scan(&number, &text); err != nil {
			return err
		}
		sum += number
	}
	if sum != 199_999*200_000/2 {
		return fmt.Errorf("the sum is %d", sum)
	}
	return numbers.Err()
}
