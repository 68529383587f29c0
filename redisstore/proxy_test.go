package redisstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// A proxy stands between a store and its server, and does what networks do. What
// it is told holds for all connections, also for those that are there already.
type proxy struct {
	Addr   string
	target string

	mu      sync.Mutex
	links   map[*link]bool
	delay   time.Duration // of every reply
	left    int           // how many bytes of the next reply pass; -1 for all
	armed   bool          // whether the call was seen whose reply that is
	reset   bool          // whether a connection is cut without a farewell
	icy     bool          // whether new connections are half open
	cuts    int           // how many connections were cut
	dials   int           // how many connections there were
	length  int           // of what came back since the last call was seen
	rewrite func([]byte) []byte
}

// A link is one connection through the proxy.
type link struct {
	client, server *net.TCPConn
	ctx            context.Context
	end            context.CancelFunc
	frozen         bool
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Addr: l.Addr().String(), target: target, links: map[*link]bool{}, left: -1}
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
		p.do(func() {
			for k := range p.links {
				p.cut(k)
			}
		})
	})
	return p
}

// do changes what the proxy does.
func (p *proxy) do(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *proxy) connect(client *net.TCPConn) {
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
func (p *proxy) carry(k *link, from io.Reader, to io.Writer, handle func(*link, []byte) (pass []byte, whole bool)) {
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
func (p *proxy) call(k *link, b []byte) ([]byte, bool) {
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
func (p *proxy) reply(k *link, b []byte) ([]byte, bool) {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-k.ctx.Done():
		}
	}
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

// cut ends a connection, with a reset if that is wanted.
func (p *proxy) cut(k *link) {
	if p.reset {
		_ = k.client.SetLinger(0)
	}
	_ = k.client.Close()
	_ = k.server.Close()
	k.end()
	delete(p.links, k)
}

// cutAfter cuts the connection of the next call of a script, after some bytes
// of the reply to it.
func (p *proxy) cutAfter(n int, reset bool) {
	p.do(func() { p.left, p.armed, p.reset = n, false, reset })
}

// cutSoFar returns how many connections were cut by that.
func (p *proxy) cutSoFar() (n int) {
	p.do(func() { n = p.cuts })
	return n
}

// dialled returns how many connections there were so far.
func (p *proxy) dialled() (n int) {
	p.do(func() { n = p.dials })
	return n
}

// freeze leaves connections half open: nothing passes, and nobody is told. New
// ones fare no better until there are to be good ones.
func (p *proxy) freeze() (frozen int) {
	p.do(func() {
		p.icy = true
		for k := range p.links {
			k.frozen = true
			frozen++
		}
	})
	return frozen
}
