package ratelimit

import (
	"bufio"
	"cmp"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// dialTimeout and writeTimeout bound how long a server can hold up the caller.
	dialTimeout  = 5 * time.Second
	writeTimeout = 5 * time.Second

	// refusalTimeout is how long a refusal may need to come back.
	refusalTimeout = 50 * time.Millisecond

	maxPacket = 1432 // fits a frame of Ethernet together with the headers of IPv6 and UDP
)

// A statsdWriter writes counters, gauges and times to a server of statsd or DogStatsD. It collects
// lines into packets, and is not safe for concurrent use. After an error all others fail too.
//
// Known clients count by themselves and send from goroutines of their own, over UDP only. Here
// counters exist already and statsd may be behind TCP, so that a line's text is all that is left.
type statsdWriter struct {
	suffix, tags string // of names, and of lines
	conn         net.Conn
	packet       *bufio.Writer
	line         []byte
}

// dialStatsd connects for one turn of sending: the first packet that is written to a connection of TCP
// which the server has closed meanwhile, as for a restart, would be lost without an error.
func dialStatsd(settings *Stats) (*statsdWriter, error) {
	conn, err := net.DialTimeout(settings.StatsdNetwork, settings.StatsdAddr, dialTimeout)
	if err != nil {
		return nil, err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	w := &statsdWriter{conn: conn, packet: bufio.NewWriterSize(conn, maxPacket)}
	tags := slices.SortedFunc(slices.Values(settings.Tags), func(a, b Tag) int { return strings.Compare(a.Name, b.Name) })
	for i, tag := range tags {
		switch {
		case !settings.DogStatsd: // as envoyproxy/ratelimit does
			w.suffix += ".__" + cleanName(tag.Name) + "=" + strings.ReplaceAll(cleanName(tag.Value), ".", "_")
		case i == 0:
			w.tags += "|#" + cleanName(tag.Name) + ":" + cleanName(tag.Value)
		default:
			w.tags += "," + cleanName(tag.Name) + ":" + cleanName(tag.Value)
		}
	}
	return w, nil
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
func (w *statsdWriter) end() error {
	w.line = append(append(w.line, w.tags...), '\n')
	if len(w.line) > w.packet.Available() {
		_ = w.packet.Flush() // Write returns its error
	}
	_, err := w.packet.Write(w.line)
	return err
}

// close sends the last packet, and closes the connection.
func (w *statsdWriter) close() error { return cmp.Or(w.packet.Flush(), w.refused(), w.conn.Close()) }

// refused returns the error of a packet of UDP to a closed port. It comes after the packet was sent, and
// would be lost with the connection.
func (w *statsdWriter) refused() error {
	if w.conn.LocalAddr().Network() != "udp" {
		return nil
	}
	_ = w.conn.SetReadDeadline(time.Now().Add(refusalTimeout)) // Read returns its error
	if _, err := w.conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
