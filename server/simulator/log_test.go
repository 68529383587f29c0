package simulator

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
)

// scraperLog is a log in which one client sends a request every second, and another four.
func scraperLog() []byte {
	var b bytes.Buffer
	start := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	for i := range 120 {
		at := start.Add(time.Duration(i) * time.Second).Format("02/Jan/2006:15:04:05 -0700")
		fmt.Fprintf(&b, "198.51.100.7 - - [%s] \"GET / HTTP/1.1\" 200 12 \"-\" \"-\"\n", at)
		for range 4 {
			fmt.Fprintf(&b, "203.0.113.9 - - [%s] \"GET /item HTTP/1.1\" 200 12 \"-\" \"-\"\n", at)
		}
	}
	return b.Bytes()
}

var byAddress = LogQuery{Domain: "log", By: []rules.Entry{{Key: "remote_address"}}}

func withLimits(q LogQuery, limits ...string) LogQuery {
	q.Limits = limits
	return q
}

func TestLogShowsWhomALimitDenies(t *testing.T) {
	log := scraperLog()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(log)
	_ = z.Close()
	for _, log := range [][]byte{log, packed.Bytes()} {
		s, err := RunLog(t.Context(), log, withLimits(byAddress, "130/1m")) // more than the other client sends in both minutes
		if err != nil {
			t.Fatal(err)
		}
		if s.Requests != 600 || len(s.Lanes) != len(penstock.Algorithms())-1 || s.To.Sub(s.From) != 119*time.Second || s.Log.Format != "combined" {
			t.Errorf("got %+v", s)
		}
		for _, lane := range s.Lanes {
			if lane.Error != "" || lane.Requests != 600 || lane.Keys != 2 || lane.DeniedKeys != 1 || len(lane.Top) != 1 || lane.Top[0].Key != "remote_address=203.0.113.9" ||
				lane.Top[0].Denied != lane.Denied.Count || lane.Written != (lane.Algorithm == "token-bucket") {
				t.Errorf("%s: got %+v, want the scraper denied alone", lane.Limit, lane)
			}
			sum := int64(0)
			for _, column := range lane.Timeline {
				sum += column.Denied
			}
			if sum != lane.Denied.Count {
				t.Errorf("%s: the timeline has %d denials, want %d", lane.Limit, sum, lane.Denied.Count)
			}
		}
		// A full bucket of 130, and 130 a minute for two minutes but for the last second.
		if got := s.Lanes[0].Denied.Count; got < 480-130-260 || got > 480-130-257 {
			t.Errorf("token-bucket denies %d", got)
		}
		if text := strings.Join(s.Assumed, "\n"); !strings.Contains(text, "whole seconds") || strings.Contains(text, "-: ") {
			t.Errorf("assumed:\n%s", text)
		}
	}
}

// A file of a megabyte may be a gigabyte unpacked.
func TestPackedLogIsBounded(t *testing.T) {
	line := "203.0.113.9 - - [02/Mar/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"" + strings.Repeat("a", 2000) + "\"\n"
	for name, text := range map[string]string{"comments": "#" + line, "requests of one second": line} {
		text = strings.Repeat(text, 1000)
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = io.WriteString(z, line)
		for n := 0; n < maxUnpacked; n += len(text) {
			_, _ = io.WriteString(z, text)
		}
		_ = z.Close()
		most := watchHeap()
		s, err := RunLog(t.Context(), packed.Bytes(), withLimits(LogQuery{Domain: "log", By: []rules.Entry{{Key: "user_agent"}}}, "5/1m", "6/1m"))
		if !errors.Is(err, errUnpacked) {
			t.Errorf("%s: got %+v, %v, want %v", name, s, err, errUnpacked)
		}
		if grown := most(); grown > 80<<20 {
			t.Errorf("%s: %d bytes took %d MiB", name, packed.Len(), grown>>20)
		}
	}
}

// watchHeap returns a function that tells by how much the heap has grown at most.
func watchHeap() (most func() uint64) {
	heap := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	stop, grown, begin := make(chan struct{}), make(chan uint64, 1), heap()
	go func() {
		high := begin
		for {
			high = max(high, heap())
			select {
			case <-stop:
				grown <- high - begin
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-grown
	}
}

func TestLogUnderSeveralLimits(t *testing.T) {
	s, err := RunLog(t.Context(), scraperLog(), withLimits(byAddress, "1000/1m", "60/1m", "30/1m sliding-log"))
	if err != nil {
		t.Fatal(err)
	}
	var denied []int64
	for _, lane := range s.Lanes {
		denied = append(denied, lane.Denied.Count)
	}
	if len(denied) != 3 || denied[0] != 0 || denied[1] == 0 || denied[2] <= denied[1] {
		t.Errorf("denied %d, want none, some, and more", denied)
	}
}

func TestRecordingIsCountedByARule(t *testing.T) {
	var b bytes.Buffer
	for i := range 20 {
		fmt.Fprintf(&b, "%d\tallowed\tshop\t2\tuser=42\t1\tpath=/login|remote_address=203.0.113.%d\n", 1767225600000000000+int64(i)*1e6, i%2)
	}
	for _, test := range []struct {
		by       []rules.Entry
		denied   int64
		topDenys string
	}{
		{[]rules.Entry{{Key: "user"}}, 18, "user=42"}, // each costs 2 of 5
		{[]rules.Entry{{Key: "path", Value: "/login"}, {Key: "remote_address"}}, 10, "path=/login|remote_address=203.0.113.0"},
	} {
		s, err := RunLog(t.Context(), b.Bytes(), LogQuery{Limits: []string{"5/1m"}, Domain: "shop", By: test.by})
		if err != nil {
			t.Fatal(err)
		}
		if lane := s.Lanes[0]; lane.Denied.Count != test.denied || lane.Top[0].Key != test.topDenys {
			t.Errorf("%v: got %+v", test.by, lane)
		}
	}
	if _, err := RunLog(t.Context(), b.Bytes(), withLimits(byAddress, "5/1m")); !errors.Is(err, ErrBadTraffic) || !strings.Contains(err.Error(), "choose a rule") {
		t.Errorf("a recording without a rule: %v", err)
	}
}

func TestLogErrors(t *testing.T) {
	ended, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		log  string
		q    LogQuery
		want error
	}{
		{"garbage", t.Context(), "no log\nat all\n", withLimits(byAddress, "5/1m"), ErrBadTraffic},
		{"empty", t.Context(), "", withLimits(byAddress, "5/1m"), ErrBadTraffic},
		{"broken gzip", t.Context(), "\x1f\x8b", withLimits(byAddress, "5/1m"), ErrBadTraffic},
		{"bad limit", t.Context(), "", withLimits(byAddress, "5/fortnight"), penstock.ErrBadLimit},
		{"concurrent", t.Context(), "", withLimits(byAddress, "5/1m concurrent"), penstock.ErrBadLimit},
		{"no limit", t.Context(), "", byAddress, ErrBadTraffic},
		{"too many", t.Context(), "", withLimits(byAddress, "1/1m", "2/1m", "3/1m", "4/1m", "5/1m", "6/1m", "7/1m"), ErrBadTraffic},
		{"unknown entry", t.Context(), string(scraperLog()), withLimits(LogQuery{Domain: "log", By: []rules.Entry{{Key: "plan"}}}, "5/1m"), ErrBadTraffic},
		{"no entry", t.Context(), string(scraperLog()), withLimits(LogQuery{Domain: "log"}, "5/1m"), ErrBadTraffic},
		{"out of time", ended, string(scraperLog()), withLimits(byAddress, "5/1m"), ErrLogTime},
	} {
		if s, err := RunLog(test.ctx, []byte(test.log), test.q); !errors.Is(err, test.want) {
			t.Errorf("%s: got %+v, %v, want %v", test.name, s, err, test.want)
		}
	}
}
