package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Command sends a command on a new connection. The reply is text: array elements are
// separated by newlines, and nil is the empty string.
func (s *Server) Command(words ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, waitLimit)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		return "", err
	}
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(conn, request.String()); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("redistest: empty reply")
	}
	switch line[0] {
	case '-':
		return "", errors.New(line[1:])
	case '$':
		return readText(r, line[1:])
	case '*':
		return readList(r, line[1:])
	}
	return line[1:], nil
}

func readText(r *bufio.Reader, length string) (string, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return "", err
	}
	text := make([]byte, n+2)
	_, err = io.ReadFull(r, text)
	return string(text[:n]), err
}

func readList(r *bufio.Reader, length string) (string, error) {
	n, err := strconv.Atoi(length)
	if err != nil {
		return "", err
	}
	lines := make([]string, max(n, 0))
	for i := range lines {
		if lines[i], err = readReply(r); err != nil {
			return "", err
		}
	}
	return strings.Join(lines, "\n"), nil
}
