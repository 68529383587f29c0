package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// weigh measures the daemon's memory with all APIs enabled: idle, and with live keys.
func (b *bench) weigh() {
	b.Logf("memory, idle and with %d keys", b.keys)
	anywhere := "127.0.0.1:0"
	daemon := b.serve("resp", "--grpc", anywhere, "--http", anywhere, "--admin", anywhere)
	<-time.After(time.Second)
	idle := daemon.resident()
	harness.Check(fill(daemon.addr, b.keys))
	full := daemon.resident()
	const mb = 1e6
	b.Find("memory of the process, idle", "≤ 40 MB", idle <= 40*mb, "%.1f MB", float64(idle)/mb)
	b.Find(fmt.Sprintf("memory of the process, %d keys", b.keys), "≤ 150 MB", full <= 150*mb, "%.1f MB", float64(full)/mb)
}

// fill takes each key once, so that it is in debt for an hour, and checks that each was
// granted as the first of its key.
func fill(addr string, keys int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	const batch = 1000
	for first := 0; first < keys; first += batch {
		for i := range batch {
			fmt.Fprintf(w, "*5\r\n$11\r\nCL.THROTTLE\r\n$17\r\nuser:%012d\r\n$1\r\n9\r\n$1\r\n1\r\n$4\r\n3600\r\n", first+i)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for range batch {
			if err := readGrant(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func readGrant(r *bufio.Reader) error {
	var reply [6]string
	for i := range reply {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		reply[i] = strings.TrimSpace(line)
	}
	if want := [6]string{"*5", ":0", ":10", ":9", ":-1", ":3600"}; reply != want {
		return fmt.Errorf("reply %q, want %q", reply, want)
	}
	return nil
}
