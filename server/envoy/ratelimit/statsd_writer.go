package ratelimit

import (
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// dialTimeout and writeTimeout bound how long a server can hold up the caller.
	dialTimeout  = 5 * time.Second
	writeTimeout = 5 * time.Second

	maxPacket = 1432 // fits a frame of Ethernet together with the headers of IPv6 and UDP
)

// A statsdWriter writes counters, gauges and times to a server of statsd or DogStatsD. It collects
// lines into packets, and is not safe for concurrent use.
//
// Known clients count by themselves and send from goroutines of their own, over UDP only. Here
// counters exist already and statsd may be behind TCP, so that a line's text is all that is left.
type statsdWriter struct {
	settings     *Stats
	suffix, tags string // of names, and of lines
	conn         net.Conn
	ended        chan struct{} // closed once the server has closed a connection of TCP
	packet       []byte
	line         []byte
}

// newStatsdWriter returns a writer that is not connected yet.
func newStatsdWriter(settings *Stats) *statsdWriter {
	w := &statsdWriter{settings: settings}
	tags := slices.SortedFunc(slices.Values(settings.Tags), func(a, b Tag) int { return strings.Compare(a.Name, b.Name) })
	for i, tag := range tags {
		switch {
		case !settings.DogStatsd: // as envoyproxy/ratelimit does
			w.suffix += ".__" + tag.Name + "=" + strings.ReplaceAll(cleanName(tag.Value), ".", "_")
		case i == 0:
			w.tags += "|#" + tag.Name + ":" + cleanName(tag.Value)
		default:
			w.tags += "," + tag.Name + ":" + cleanName(tag.Value)
		}
	}
	return w
}

// cleanName replaces what has a meaning in lines of statsd, in any of its dialects.
func cleanName(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' || strings.ContainsRune(":|@#,;[]", r) {
			return '_'
		}
		return r
	}, text)
}

// connect connects, if there is no connection, or the server has closed it.
func (w *statsdWriter) connect() (err error) {
	if w.conn != nil && !w.hasEnded() {
		return nil
	}
	_ = w.close() // it is of no use
	if w.conn, err = net.DialTimeout(w.settings.StatsdNetwork, w.settings.StatsdAddr, dialTimeout); err != nil {
		return err
	}
	if w.ended = nil; w.settings.StatsdNetwork == "tcp" {
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

func (w *statsdWriter) hasEnded() bool {
	select {
	case <-w.ended: // which is nil for UDP, and never ready
		return true
	default:
		return false
	}
}

// count adds to a counter. After an error the lines of a packet may be lost, this one among them.
func (w *statsdWriter) count(name string, n uint64) error {
	w.begin(name)
	w.line = append(strconv.AppendUint(w.line, n, 10), "|c"...)
	return w.end()
}

// gauge sets a gauge.
func (w *statsdWriter) gauge(name string, value uint64) error {
	w.begin(name)
	w.line = append(strconv.AppendUint(w.line, value, 10), "|g"...)
	return w.end()
}

// time adds a time in milliseconds that was measured n times.
func (w *statsdWriter) time(name string, milliseconds float64, n uint64) error {
	w.begin(name)
	w.line = append(strconv.AppendFloat(w.line, milliseconds, 'f', -1, 64), "|ms"...)
	if n > 1 {
		w.line = append(w.line, "|@"...)
		w.line = strconv.AppendFloat(w.line, 1/float64(n), 'f', -1, 64)
	}
	return w.end()
}

func (w *statsdWriter) begin(name string) {
	w.line = append(append(append(w.line[:0], name...), w.suffix...), ':')
}

// end adds the line to the packet, which is sent first if there is no room.
func (w *statsdWriter) end() (err error) {
	w.line = append(append(w.line, w.tags...), '\n')
	if len(w.packet)+len(w.line) > maxPacket {
		err = w.flush()
	}
	w.packet = append(w.packet, w.line...)
	return err
}

// flush sends the packet. After an error the next connect connects anew.
func (w *statsdWriter) flush() error {
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
		_ = w.close()
	}
	return err
}

// close closes the connection. What was not flushed is lost.
func (w *statsdWriter) close() error {
	conn := w.conn
	w.conn, w.packet = nil, w.packet[:0]
	if conn == nil {
		return nil
	}
	return conn.Close()
}
