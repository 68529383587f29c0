package redisproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

var errProtocol = errors.New("redisproxy: bad RESP")

// readCommand reads a command of a client.
func readCommand(r *bufio.Reader) (words []string, err error) {
	n, err := readHead(r, '*')
	if err != nil || n < 1 {
		return nil, errors.Join(err, errProtocol)
	}
	for range n {
		size, err := readHead(r, '$')
		if err != nil || size < 0 {
			return nil, errors.Join(err, errProtocol)
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, nil
}

// readHead reads a line that consists of a type and a number.
func readHead(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, errProtocol
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// A backend is a connection to a server.
type backend struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(address string) (*backend, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &backend{conn: conn, r: bufio.NewReader(conn)}, nil
}

// call sends a command and returns the reply as the server sent it.
func (b *backend) call(words []string) (string, error) {
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(b.conn, request.String()); err != nil {
		return "", err
	}
	var reply strings.Builder
	err := copyReply(&reply, b.r)
	return reply.String(), err
}

// copyReply copies one reply, of RESP2 or RESP3.
func copyReply(w *strings.Builder, r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	w.WriteString(line)
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=', '!':
		if err != nil || n < 0 {
			return err
		}
		_, err = io.CopyN(w, r, int64(n)+2)
		return err
	case '%':
		n *= 2
	case '*', '~', '>':
	default:
		return nil
	}
	for ; n > 0 && err == nil; n-- {
		err = copyReply(w, r)
	}
	return err
}
