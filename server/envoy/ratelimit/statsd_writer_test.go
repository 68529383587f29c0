package ratelimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
)

// listen returns a server of TCP that receives one connection to its end.
func listen(t *testing.T) (addr string, received <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	texts := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		text, _ := io.ReadAll(conn)
		texts <- string(text)
	}()
	return l.Addr().String(), texts
}

func dial(t *testing.T, settings *Stats) *statsdWriter {
	t.Helper()
	w, err := dialStatsd(settings)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWriterWritesLines(t *testing.T) {
	t.Parallel()
	tags := []Tag{{Name: "zone", Value: "1"}, {Name: "env", Value: "a.b,c|d"}}
	for _, c := range []struct {
		name     string
		settings Stats
		want     string
	}{
		{"without tags", Stats{}, "a.b:3|c\nt:2.5|ms\nt:0.1|ms|@0.25\n"},
		{"tags in names", Stats{Tags: tags}, "a.b.__env=a_b_c_d.__zone=1:3|c\nt.__env=a_b_c_d.__zone=1:2.5|ms\nt.__env=a_b_c_d.__zone=1:0.1|ms|@0.25\n"},
		{"DogStatsD", Stats{Tags: tags, DogStatsd: true}, "a.b:3|c|#env:a.b_c_d,zone:1\nt:2.5|ms|#env:a.b_c_d,zone:1\nt:0.1|ms|@0.25|#env:a.b_c_d,zone:1\n"},
	} {
		addr, received := listen(t)
		c.settings.StatsdNetwork, c.settings.StatsdAddr = "tcp", addr
		w := dial(t, &c.settings)
		for _, err := range []error{w.count("a.b", 3), w.time("t", 2.5, 1), w.time("t", 0.1, 4), w.close()} {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if got := <-received; got != c.want {
			t.Errorf("%s: got\n%s want\n%s", c.name, got, c.want)
		}
	}
}

// A packet has whole lines, and no more bytes than a frame takes.
func TestWriterPacketsFitFrames(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w := dial(t, &Stats{StatsdNetwork: "udp", StatsdAddr: conn.LocalAddr().String()})
	var want strings.Builder
	for i := range 100 {
		name := fmt.Sprintf("%s.%d", strings.Repeat("x", i), i)
		fmt.Fprintf(&want, "%s:1|c\n", name)
		if err := w.count(name, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	var got string
	packet := make([]byte, 1<<16)
	for len(got) < want.Len() {
		n, err := conn.Read(packet)
		if err != nil {
			t.Fatal(err)
		}
		if n > 1432 || packet[n-1] != '\n' {
			t.Errorf("a packet of %d bytes ends in %q", n, packet[n-1])
		}
		got += string(packet[:n])
	}
	if got != want.String() {
		t.Errorf("got\n%s want\n%s", got, want.String())
	}
}

// The log says that statistics are not sent, over UDP too, though one packet is sent without an error.
func TestWriterNoticesClosedPort(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	w := dial(t, &Stats{StatsdNetwork: "udp", StatsdAddr: conn.LocalAddr().String()})
	if err := w.count("a", 1); err != nil {
		t.Fatal(err)
	}
	if err := w.close(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want %v", err, syscall.ECONNREFUSED)
	}
}

func TestCleanNameReplacesWhatLinesMean(t *testing.T) {
	t.Parallel()
	if got, want := cleanName("a.b-é/:|@#,;[]\n\x00\x7f"), "a.b-é/___________"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What is counted after the server has closed the connection, as for a restart, arrives over a new one.
func TestSinkConnectsForEachTurn(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	settings := &Stats{StatsdNetwork: "tcp", StatsdAddr: l.Addr().String()}
	for range 2 {
		w := dial(t, settings)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{w.count("a", 1), w.close()} {
			if err != nil {
				t.Error(err)
			}
		}
		if got, err := io.ReadAll(conn); string(got) != "a:1|c\n" {
			t.Errorf("received %q (%v)", got, err)
		}
		_ = conn.Close()
	}
}
