// Package redisproxy emulates the proxies behind which people rent their Redis, in front of real
// servers: each server owns a range of slots, and a script goes to the server of its first key. A
// [Preset] says what a proxy refuses, answers by itself, or closes the connection on.
package redisproxy

import (
	"bufio"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

// A Proxy is a running proxy.
type Proxy struct {
	Addr string // host:port

	mu       sync.Mutex
	listener net.Listener
	clients  map[net.Conn]bool
	preset   Preset
	servers  []*redistest.Server
	refused  int
}

// Start starts a proxy and stops it when the test ends.
func Start(t testing.TB, preset Preset, servers ...*redistest.Server) *Proxy {
	t.Helper()
	p := &Proxy{Addr: "127.0.0.1:0", preset: preset, servers: servers, clients: map[net.Conn]bool{}}
	p.Resume(t)
	t.Cleanup(p.Stop)
	return p
}

// URL returns the URL of the proxy.
func (p *Proxy) URL() string { return "redis://" + p.Addr }

// Behave changes what the proxy does from the next command on.
func (p *Proxy) Behave(preset Preset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.preset = preset
}

// Use changes the servers between which the slots are divided, from the next command on. Unlike a real
// proxy, it moves no keys.
func (p *Proxy) Use(servers ...*redistest.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers = servers
}

// Refused returns how many commands the proxy has refused.
func (p *Proxy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Stop closes all connections and accepts no more, as if the proxy were killed.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
	for client := range p.clients {
		_ = client.Close()
	}
	clear(p.clients)
}

// Resume accepts connections again at the same address.
func (p *Proxy) Resume(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	p.Addr = l.Addr().String()
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	go p.accept(l)
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.listener != l {
			_ = client.Close() // it was accepted while the proxy was stopped and resumed
		}
		p.clients[client] = true
		p.mu.Unlock()
		go p.serve(client)
	}
}

// serve answers the commands of a client, one after the other.
func (p *Proxy) serve(client net.Conn) {
	s := &session{proxy: p, backends: map[string]*backend{}}
	defer s.close()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.clients, client)
		_ = client.Close()
	}()
	r, w := bufio.NewReader(client), bufio.NewWriter(client)
	for {
		words, err := readCommand(r)
		if err != nil {
			return
		}
		reply, err := s.answer(words)
		if err != nil {
			_ = w.Flush() // what was answered before
			return
		}
		_, _ = w.WriteString(reply)
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
	}
}

// A session is a client's connection with those to the servers.
type session struct {
	proxy     *Proxy
	preset    Preset
	servers   []*redistest.Server
	backends  map[string]*backend // by the server's address
	handshake [][]string          // what each of them is sent first
}

func (s *session) close() {
	for _, b := range s.backends {
		_ = b.conn.Close()
	}
}

var errClosed = errors.New("the proxy closes the connection")

// answer returns the reply to a command.
func (s *session) answer(words []string) (string, error) {
	p := s.proxy
	p.mu.Lock()
	s.preset, s.servers = p.preset, p.servers
	p.mu.Unlock()
	reply, err := s.refusal(words)
	switch {
	case err != nil || strings.HasPrefix(reply, "-"):
		p.mu.Lock()
		p.refused++
		p.mu.Unlock()
		return reply, err
	case reply != "":
		return reply, nil
	}
	return s.forward(words)
}

// refusal returns what the proxy replies by itself, or "".
func (s *session) refusal(words []string) (string, error) {
	for n := min(len(words), 2); n > 0; n-- {
		if reply, ok := s.preset.Replies[strings.ToUpper(strings.Join(words[:n], " "))]; ok && reply == Close {
			return "", errClosed
		} else if ok {
			return reply + "\r\n", nil
		}
	}
	script, keys := scriptOf(words)
	text := ""
	if keys != nil {
		text = s.preset.checkKeys(keys)
	}
	if text == "" && script != "" && s.preset.Version != 0 {
		text = CheckScript(script, s.preset.Version)
	}
	if text == "" {
		return "", nil
	}
	return "-" + text + "\r\n", nil
}

// scriptOf returns the text of a script if a command has one, and its keys, which are nil if the command
// does not run a script.
func scriptOf(words []string) (text string, keys []string) {
	switch name := strings.ToUpper(words[0]); {
	case name == "SCRIPT" && len(words) == 3:
		return words[2], nil
	case name != "EVAL" && name != "EVALSHA" || len(words) < 3:
		return "", nil
	case name == "EVAL":
		text = words[1]
	}
	n, _ := strconv.Atoi(words[2])
	return text, words[3 : 3+min(max(n, 0), len(words)-3)]
}

// checkKeys returns the error for the keys of a script, or "".
func (p *Preset) checkKeys(keys []string) string {
	if len(keys) == 0 {
		return p.NoKeys
	}
	if slices.ContainsFunc(keys, func(key string) bool { return Slot(key) != Slot(keys[0]) }) {
		return p.CrossSlot
	}
	return ""
}

// forward returns the reply of a server.
func (s *session) forward(words []string) (string, error) {
	switch strings.ToUpper(words[0]) {
	case "HELLO", "AUTH", "SELECT", "CLIENT":
		s.handshake = append(s.handshake, words)
		return s.broadcast(words, len(s.handshake)-1)
	case "SCRIPT":
		return s.broadcast(words, len(s.handshake))
	case "EVAL", "EVALSHA":
		if _, keys := scriptOf(words); len(keys) > 0 {
			return s.send(s.owner(keys[0]), words)
		}
	case "PING", "ECHO", "INFO", "TIME", "CLUSTER", "COMMAND", "CONFIG", "ACL", "DBSIZE", "ROLE", "QUIT", "MEMORY", "LATENCY":
	default:
		if len(words) > 1 {
			return s.send(s.owner(words[1]), words)
		}
	}
	return s.send(s.servers[0], words)
}

// owner returns the server of a key.
func (s *session) owner(key string) *redistest.Server {
	slot := Slot(key)
	if s.preset.NoTags {
		slot = hash(key)
	}
	return s.servers[slot*len(s.servers)/slots]
}

// broadcast sends a command to all servers, and returns the reply of the first.
func (s *session) broadcast(words []string, handshake int) (first string, err error) {
	for i, server := range s.servers {
		b, err := s.backend(server, handshake)
		if err != nil {
			return "", err
		}
		reply, err := b.call(words)
		if err != nil {
			return "", err
		}
		if i == 0 {
			first = reply
		}
	}
	return first, nil
}

func (s *session) send(server *redistest.Server, words []string) (string, error) {
	b, err := s.backend(server, len(s.handshake))
	if err != nil {
		return "", err
	}
	return b.call(words)
}

// backend returns the connection to a server, to which the first commands of the handshake were sent.
func (s *session) backend(server *redistest.Server, handshake int) (*backend, error) {
	if b := s.backends[server.Addr]; b != nil {
		return b, nil
	}
	b, err := dial(server.Addr)
	if err != nil {
		return nil, err
	}
	s.backends[server.Addr] = b
	for _, words := range s.handshake[:handshake] {
		if _, err := b.call(words); err != nil {
			return nil, err
		}
	}
	return b, nil
}
