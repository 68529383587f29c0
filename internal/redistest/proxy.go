package redistest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards connections to a server and injects network faults. A fault
// applies to existing and new connections.
type Proxy struct {
	Addr string

	mu        sync.Mutex
	target    string
	links     map[*link]bool
	delay     time.Duration // of every reply
	release   chan struct{} // closed when the delay changes
	passBytes int           // of the next reply before the cut; -1 forwards all
	armed     bool          // whether the script call to cut was seen
	reset     bool          // whether a cut sends RST instead of FIN
	freezeNew bool          // whether new connections are frozen
	cutAlls   int           // times that all connections were cut
	cuts      int           // connections cut within a reply
	dials     int           // connections so far
	length    int           // bytes of replies since the last script call
	delayed   int           // replies delayed so far
	rewrite   func([]byte) []byte
}

// A link is one connection through the proxy.
type link struct {
	client, server *net.TCPConn
	ctx            context.Context
	cancel         context.CancelFunc
	frozen         bool
}

// StartProxy starts a proxy and stops it when the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, links: map[*link]bool{}, release: make(chan struct{}), passBytes: -1}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.connect(client.(*net.TCPConn))
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		p.CutAll()
	})
	return p
}

// do runs a change under the lock.
func (p *Proxy) do(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) connect(client *net.TCPConn) {
	target, cutAlls := "", 0
	p.do(func() {
		target, cutAlls = p.target, p.cutAlls
		p.dials++
	})
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	k := &link{client: client, server: server.(*net.TCPConn)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	p.do(func() {
		if p.links[k], k.frozen = true, p.freezeNew; p.cutAlls != cutAlls {
			p.cut(k) // it was being opened when all were cut
		}
	})
	go p.forward(k, k.client, k.server, p.call)
	go p.forward(k, k.server, k.client, p.reply)
}

// forward copies bytes from one side to the other after handle has filtered them.
func (p *Proxy) forward(k *link, from io.Reader, to io.Writer, handle func(*link, []byte) (pass []byte, whole bool)) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		pass, whole := handle(k, buffer[:n])
		_, writeErr := to.Write(pass)
		if err != nil || writeErr != nil || !whole {
			p.do(func() { p.cut(k) })
			return
		}
	}
}

// call forwards requests and detects script calls.
func (p *Proxy) call(k *link, b []byte) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes.Contains(b, []byte("EVAL")) {
		p.armed, p.length = p.passBytes >= 0, 0
	}
	if k.frozen {
		return nil, true
	}
	return b, true
}

// reply delays, cuts or rewrites replies.
func (p *Proxy) reply(k *link, b []byte) ([]byte, bool) {
	p.wait(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.length += len(b)
	switch {
	case k.frozen:
		return nil, true
	case p.armed && len(b) > p.passBytes:
		b, p.passBytes, p.armed = b[:p.passBytes], -1, false
		p.cuts++
		return b, false
	case p.armed:
		p.passBytes -= len(b)
	case p.rewrite != nil:
		b = p.rewrite(b)
	}
	return b, true
}

// wait delays a reply until the delay is over or changed, or the link is cut.
func (p *Proxy) wait(k *link) {
	var delay time.Duration
	var release chan struct{}
	p.do(func() {
		if delay, release = p.delay, p.release; delay > 0 {
			p.delayed++
		}
	})
	if delay == 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-release:
	case <-k.ctx.Done():
	}
}

// cut closes a connection; the lock is held.
func (p *Proxy) cut(k *link) {
	if p.reset {
		_ = k.client.SetLinger(0)
	}
	_ = k.client.Close()
	_ = k.server.Close()
	k.cancel()
	delete(p.links, k)
}

// CutReplyAfter cuts the connection of the next script call after n bytes of its
// reply, with RST or FIN.
func (p *Proxy) CutReplyAfter(n int, reset bool) {
	p.do(func() { p.passBytes, p.armed, p.reset = n, false, reset })
}

// Cuts returns the number of connections that CutReplyAfter cut.
func (p *Proxy) Cuts() (n int) {
	p.do(func() { n = p.cuts })
	return n
}

// CutAll cuts all connections and returns their number.
func (p *Proxy) CutAll() (n int) {
	p.do(func() {
		n = len(p.links)
		p.cutAlls++
		for k := range p.links {
			p.cut(k)
		}
	})
	return n
}

// Inject sends bytes to the client of every connection, between others, and returns their number.
func (p *Proxy) Inject(b []byte) (n int) {
	p.do(func() {
		for k := range p.links {
			if _, err := k.client.Write(b); err == nil {
				n++
			}
		}
	})
	return n
}

// Redirect forwards new connections to another server.
func (p *Proxy) Redirect(target string) { p.do(func() { p.target = target }) }

// Delay delays every reply. It releases the replies that an earlier Delay still
// holds.
func (p *Proxy) Delay(d time.Duration) {
	p.do(func() {
		close(p.release)
		p.delay, p.release = d, make(chan struct{})
	})
}

// DelayedReplies returns the number of delayed replies.
func (p *Proxy) DelayedReplies() (n int) {
	p.do(func() { n = p.delayed })
	return n
}

// Rewrite passes every reply through a function; nil stops that.
func (p *Proxy) Rewrite(f func([]byte) []byte) { p.do(func() { p.rewrite = f }) }

// Connections returns the number of connections so far.
func (p *Proxy) Connections() (n int) {
	p.do(func() { n = p.dials })
	return n
}

// ReplyLength returns the number of reply bytes since the last script call.
func (p *Proxy) ReplyLength() (n int) {
	p.do(func() { n = p.length })
	return n
}

// Freeze makes connections half open: they stay open and forward nothing. New
// connections are frozen too until Thaw.
func (p *Proxy) Freeze() (frozen int) {
	p.do(func() {
		p.freezeNew = true
		for k := range p.links {
			k.frozen = true
			frozen++
		}
	})
	return frozen
}

// Thaw forwards new connections again. Frozen connections stay frozen.
func (p *Proxy) Thaw() { p.do(func() { p.freezeNew = false }) }
