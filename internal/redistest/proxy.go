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

// A Proxy stands between a store and its server, and does what networks do. What
// it is told holds for all connections, also for those that are there already.
type Proxy struct {
	Addr string

	mu      sync.Mutex
	target  string
	links   map[*link]bool
	delay   time.Duration // of every reply
	left    int           // how many bytes of the next reply pass; -1 for all
	armed   bool          // whether the call was seen whose reply that is
	reset   bool          // whether a connection is cut without a farewell
	icy     bool          // whether new connections are half open
	cuts    int           // how many connections were cut in a reply
	dials   int           // how many connections there were
	length  int           // of what came back since the last call was seen
	held    int           // how many replies were held back
	rewrite func([]byte) []byte
}

// A link is one connection through the proxy.
type link struct {
	client, server *net.TCPConn
	ctx            context.Context
	end            context.CancelFunc
	frozen         bool
}

// StartProxy starts one that ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, links: map[*link]bool{}, left: -1}
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

// do does something that no connection may see half done.
func (p *Proxy) do(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) connect(client *net.TCPConn) {
	target := ""
	p.do(func() {
		target = p.target
		p.dials++
	})
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	k := &link{client: client, server: server.(*net.TCPConn)}
	k.ctx, k.end = context.WithCancel(context.Background())
	p.do(func() { p.links[k], k.frozen = true, p.icy })
	go p.carry(k, k.client, k.server, p.call)
	go p.carry(k, k.server, k.client, p.reply)
}

// carry carries bytes from one side to the other, as handle lets them pass.
func (p *Proxy) carry(k *link, from io.Reader, to io.Writer, handle func(*link, []byte) (pass []byte, whole bool)) {
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

// call lets everything pass, and notices calls of scripts.
func (p *Proxy) call(k *link, b []byte) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes.Contains(b, []byte("EVAL")) {
		p.armed, p.length = p.left >= 0, 0
	}
	if k.frozen {
		return nil, true
	}
	return b, true
}

// reply lets so much of a reply pass as is left, when its time has come.
func (p *Proxy) reply(k *link, b []byte) ([]byte, bool) {
	p.hold(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.length += len(b)
	switch {
	case k.frozen:
		return nil, true
	case p.armed && len(b) > p.left:
		b, p.left, p.armed = b[:p.left], -1, false
		p.cuts++
		return b, false
	case p.armed:
		p.left -= len(b)
	case p.rewrite != nil:
		b = p.rewrite(b)
	}
	return b, true
}

// hold holds a reply back for as long as replies are delayed.
func (p *Proxy) hold(k *link) {
	delay := time.Duration(0)
	p.do(func() {
		if delay = p.delay; delay > 0 {
			p.held++
		}
	})
	if delay == 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.ctx.Done():
	}
}

// cut ends a connection, with a reset if that is wanted.
func (p *Proxy) cut(k *link) {
	if p.reset {
		_ = k.client.SetLinger(0)
	}
	_ = k.client.Close()
	_ = k.server.Close()
	k.end()
	delete(p.links, k)
}

// CutReplyAfter cuts the connection of the next call of a script, after some bytes
// of the reply to it.
func (p *Proxy) CutReplyAfter(n int, reset bool) {
	p.do(func() { p.left, p.armed, p.reset = n, false, reset })
}

// Cuts returns how many connections were cut by that.
func (p *Proxy) Cuts() (n int) {
	p.do(func() { n = p.cuts })
	return n
}

// CutAll cuts all connections, and returns how many there were.
func (p *Proxy) CutAll() (n int) {
	p.do(func() {
		n = len(p.links)
		for k := range p.links {
			p.cut(k)
		}
	})
	return n
}

// Redirect makes new connections lead to another server.
func (p *Proxy) Redirect(target string) { p.do(func() { p.target = target }) }

// Delay holds every reply back for a time, or no longer.
func (p *Proxy) Delay(d time.Duration) { p.do(func() { p.delay = d }) }

// DelayedReplies returns how many replies were held back by that.
func (p *Proxy) DelayedReplies() (n int) {
	p.do(func() { n = p.held })
	return n
}

// Rewrite has every reply read and changed by a function, or nil.
func (p *Proxy) Rewrite(f func([]byte) []byte) { p.do(func() { p.rewrite = f }) }

// Connections returns how many connections there were so far.
func (p *Proxy) Connections() (n int) {
	p.do(func() { n = p.dials })
	return n
}

// ReplyLength returns how many bytes came back since the last call of a script.
func (p *Proxy) ReplyLength() (n int) {
	p.do(func() { n = p.length })
	return n
}

// Freeze leaves connections half open: nothing passes, and nobody is told. New
// ones fare no better until the proxy thaws.
func (p *Proxy) Freeze() (frozen int) {
	p.do(func() {
		p.icy = true
		for k := range p.links {
			k.frozen = true
			frozen++
		}
	})
	return frozen
}

// Thaw lets new connections be good ones. Those that are frozen stay so.
func (p *Proxy) Thaw() { p.do(func() { p.icy = false }) }
