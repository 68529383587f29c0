// Package statsd writes counters, gauges and times to a server of statsd or DogStatsD.
//
// Known clients count by themselves and send from goroutines of their own, over UDP only. Here
// counters exist already and statsd may be behind TCP, so that a line's text is all that is left.
package statsd

import (
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Tag is a name and a value that all lines have.
type Tag struct{ Name, Value string }

// Options configure a [Writer].
type Options struct {
	Network string // tcp or udp
	Addr    string

	// Tags are written in DogStatsD's form if DogTags is set, and otherwise as parts of the
	// names, as envoyproxy/ratelimit does.
	Tags    []Tag
	DogTags bool
}

const (
	// dialTimeout and writeTimeout bound how long a server can hold up the caller.
	dialTimeout  = 5 * time.Second
	writeTimeout = 5 * time.Second

	maxPacket = 1432 // fits a frame of Ethernet together with the headers of IPv6 and UDP
)

// A Writer collects lines into packets, and sends them. It is not safe for concurrent use.
type Writer struct {
	options      Options
	suffix, tags string // of names, and of lines
	conn         net.Conn
	ended        chan struct{} // closed once the server has closed a connection of TCP
	packet       []byte
	line         []byte
}

// NewWriter returns a writer that is not connected yet.
func NewWriter(o Options) *Writer {
	w := &Writer{options: o}
	tags := slices.SortedFunc(slices.Values(o.Tags), func(a, b Tag) int { return strings.Compare(a.Name, b.Name) })
	for i, tag := range tags {
		switch {
		case !o.DogTags:
			w.suffix += ".__" + tag.Name + "=" + strings.ReplaceAll(CleanName(tag.Value), ".", "_")
		case i == 0:
			w.tags += "|#" + tag.Name + ":" + CleanName(tag.Value)
		default:
			w.tags += "," + tag.Name + ":" + CleanName(tag.Value)
		}
	}
	return w
}

// CleanName replaces what has a meaning in lines of statsd, in any of its dialects.
func CleanName(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' || strings.ContainsRune(":|@#,;[]", r) {
			return '_'
		}
		return r
	}, text)
}

// Connect connects, if there is no connection, or the server has closed it.
func (w *Writer) Connect() (err error) {
	if w.conn != nil && !w.hasEnded() {
		return nil
	}
	_ = w.Close() // it is of no use
	if w.conn, err = net.DialTimeout(w.options.Network, w.options.Addr, dialTimeout); err != nil {
		return err
	}
	if w.ended = nil; w.options.Network == "tcp" {
		w.ended = make(chan struct{})
		go watch(w.conn, w.ended)
	}
	return nil
}

// watch reads until a connection ends. The first packet that is written to a connection of TCP which the
// server has closed is lost without an error.
func watch(conn net.Conn, ended chan<- struct{}) {
	_, _ = io.Copy(io.Discard, conn)
	close(ended)
}

func (w *Writer) hasEnded() bool {
	select {
	case <-w.ended: // which is nil for UDP, and never ready
		return true
	default:
		return false
	}
}

// Count adds to a counter. After an error the lines of a packet may be lost, this one among them.
func (w *Writer) Count(name string, n uint64) error {
	w.begin(name)
	w.line = append(strconv.AppendUint(w.line, n, 10), "|c"...)
	return w.end()
}

// Gauge sets a gauge.
func (w *Writer) Gauge(name string, value uint64) error {
	w.begin(name)
	w.line = append(strconv.AppendUint(w.line, value, 10), "|g"...)
	return w.end()
}

// Time adds a time in milliseconds that was measured n times.
func (w *Writer) Time(name string, milliseconds float64, n uint64) error {
	w.begin(name)
	w.line = append(strconv.AppendFloat(w.line, milliseconds, 'f', -1, 64), "|ms"...)
	if n > 1 {
		w.line = append(w.line, "|@"...)
		w.line = strconv.AppendFloat(w.line, 1/float64(n), 'f', -1, 64)
	}
	return w.end()
}

func (w *Writer) begin(name string) {
	w.line = append(append(append(w.line[:0], name...), w.suffix...), ':')
}

// end adds the line to the packet, which is sent first if there is no room.
func (w *Writer) end() (err error) {
	w.line = append(append(w.line, w.tags...), '\n')
	if len(w.packet)+len(w.line) > maxPacket {
		err = w.Flush()
	}
	w.packet = append(w.packet, w.line...)
	return err
}

// Flush sends the packet. After an error the next Connect connects anew.
func (w *Writer) Flush() error {
	packet := w.packet
	w.packet = w.packet[:0]
	if len(packet) == 0 || w.conn == nil {
		return nil
	}
	err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = w.conn.Write(packet)
	}
	if err != nil {
		_ = w.Close()
	}
	return err
}

// Close closes the connection. What was not flushed is lost.
func (w *Writer) Close() error {
	conn := w.conn
	w.conn, w.packet = nil, w.packet[:0]
	if conn == nil {
		return nil
	}
	return conn.Close()
}
